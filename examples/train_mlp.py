"""Train a small multilayer perceptron on MNIST-shaped random images: the job of `make demo`.

A plain training script that knows nothing of memfit:

    memfit measure --ledger -- python examples/train_mlp.py --steps 300
"""

import argparse
from itertools import pairwise

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 512, 256])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()

    torch.manual_seed(0)
    images = torch.rand(60_000 // 10, 28 * 28)
    labels = torch.randint(10, (len(images),))
    sizes = [28 * 28, *options.hidden]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(sizes[-1], 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()

    for step in range(options.steps):
        rows = torch.randint(len(images), (options.batch_size,))
        optimizer.zero_grad()
        loss = loss_function(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == options.steps - 1:
            print(f"step {step + 1:4d}  loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
