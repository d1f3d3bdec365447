"""Train a small language model on random tokens: the job of `make demo`.

A plain training script that knows nothing of memfit:

    memfit measure --ledger -- python examples/train_gpt.py --steps 15
"""

import argparse

import torch
from torch import nn


class SmallGPT(nn.Module):
    """A decoder of transformer blocks whose output shares its weights with the embedding."""

    def __init__(self, num_tokens: int, width: int, num_layers: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.position = nn.Parameter(torch.zeros(length, width))
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True, activation="gelu")
        self.blocks = nn.TransformerEncoder(block, num_layers, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.embedding(tokens) + self.position, mask=self.mask, is_causal=True)
        return hidden @ self.embedding.weight.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = SmallGPT(options.tokens, options.width, options.layers, options.length).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    for step in range(options.steps):
        text = torch.randint(options.tokens, (options.batch_size, options.length + 1), device=options.device)
        optimizer.zero_grad()
        guesses = model(text[:, :-1])
        loss = nn.functional.cross_entropy(guesses.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if step % 5 == 0 or step == options.steps - 1:
            print(f"step {step + 1:3d}  loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
