"""Calls of GPU operators that are made of others, and the bytes that torch 2.14.1 has them allocate inside.

Each runs on two tensors of `NUM_BYTES`; the figure is the most that is alive at once beside them, in bytes.
"""

from __future__ import annotations

NUM_BYTES = 1024 * 1024 * 4
JOB = """
import torch
F = torch.nn.functional

def make():
    x, y = (torch.rand(1024, 1024, device="cuda") for _ in range(2))
    kept = []
    def step():
        assert x is not y  # both live on, used or not
        kept.clear()
        with torch.no_grad():
            CALL
    return step
"""
CALLS: dict[str, tuple[str, int]] = {
    "a reduced loss keeps every element": ("kept.append(F.mse_loss(x, y)); kept.append(x * 2)", 8_389_124),
    "huber loss": ("F.huber_loss(x, y)", 4_194_824),
    "binary cross-entropy": ("kept.append(F.binary_cross_entropy(x, y)); kept.append(x * 2)", 8_388_608),
    "isinf": ("x.isinf()", 5_242_880),
    "the largest of each column": ("x.max(0)", 33_566_752),
    "variance of each column": ("x.var(0)", 33_558_560),
    "logarithm of summed exponentials": ("x.logsumexp(0)", 12_591_136),
    "how many are not zero": ("torch.count_nonzero(x, 1)", 9_445_376),
    "a sort of everything": ("x.view(-1).sort()", 33_913_343),
    "a sort of long slices": ("x.view(16, -1).sort()", 46_496_255),
    "the largest 50 of long rows": ("x.view(-1).topk(50)", 307_643),
    "where of two types": ("torch.where(x > 1, x, y.half())", 11_534_336),
    "distances": ("torch.cdist(x, y)", 21_118_976),
    "a permutation": ("torch.randperm(1024 * 1024, device='cuda')", 50_625_023),
    "the gradient of bags of words": (
        """with torch.enable_grad():
                words = torch.zeros(1024, 8, dtype=torch.int64, device="cuda")
                F.embedding_bag(words, x.detach().requires_grad_()).sum().backward()""",
        16_312_752,
    ),
    "the gradient of few words": (
        """with torch.enable_grad():
                words = torch.zeros(1024, 2, dtype=torch.int64, device="cuda")
                F.embedding(words, x.detach().requires_grad_()).sum().backward()""",
        12_599_304,
    ),
    "the gradient of many words": (
        """with torch.enable_grad():
                words = torch.zeros(1024, 8, dtype=torch.int64, device="cuda")
                F.embedding(words, x.detach().requires_grad_()).sum().backward()""",
        45_590_960,
    ),
    "a CTC loss and its gradient": (
        """with torch.enable_grad():
                scores = x.detach().view(64, 16, 1024).requires_grad_()
                targets = torch.ones(16, 20, dtype=torch.int64, device="cuda")
                F.ctc_loss(scores, targets, (64,) * 16, (20,) * 16).backward()""",
        4_533_256,
    ),
    "a transform": ("torch.fft.rfft(x)", 12_591_104),
    "magnitudes of complex numbers": ("torch.complex(x, y).abs()", 20_971_520),
    "one of ten classes": ("F.one_hot((x * 0).long(), 10)", 92_274_688),
    "an encoder layer in evaluation": (
        """layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).cuda().eval()
            layer(x.view(16, 1024, 64))""",
        33_885_440,
    ),
    "self-attention whose weights are wanted": (
        "torch.nn.MultiheadAttention(64, 4, batch_first=True).cuda().eval()(*[x.view(16, 1024, 64)] * 3)",
        360_907_776,
    ),
    "attention in inference mode": (
        """with torch.inference_mode():
                F.scaled_dot_product_attention(*[x.view(16, 4, 256, 64).half()] * 3, is_causal=True)""",
        4_259_864,
    ),
    "a recurrent layer in inference mode": (
        """with torch.inference_mode():
                torch.nn.LSTM(64, 64, batch_first=True).cuda().eval()(x.view(16, 1024, 64))""",
        109_365_632,
    ),
    "attention over heads behind each other": (
        """with torch.enable_grad():
                heads = x.detach().half().view(256, 16, 4, 64).permute(1, 2, 0, 3).requires_grad_()
                out = F.scaled_dot_product_attention(heads, heads, heads)
                out.permute(2, 0, 1, 3).contiguous().sum().backward()""",
        19_005_468,
    ),
    "norm of rows that are not in order": (
        """with torch.enable_grad():
                F.layer_norm(x.detach().t().requires_grad_(), (1024,)).pow(2).sum().backward()""",
        16_785_416,
    ),
    "product with the gradient of a sum": (
        """with torch.enable_grad():
                F.linear(x, y.detach().requires_grad_()).sum().backward()""",
        25_427_976,
    ),
    "roll over three dimensions": ("torch.roll(x.view(4, 256, 1024), (1, 1, 1), (0, 1, 2))", 12_582_912),
}


def job_of(name: str) -> tuple[str, int]:
    """The file of one call, whose `make` gives its step, and the peak of its tensors in bytes."""
    call, more_bytes = CALLS[name]
    return JOB.replace("CALL", call), 2 * NUM_BYTES + more_bytes
