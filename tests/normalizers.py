"""Every normalizer of the package as one function of (x, weight, bias)."""

from collections.abc import Callable

import torch
from torch import Tensor

from bgn import functional as F

Normalizer = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]

C = 6


def _stats(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(size, dtype=torch.float64, generator=generator)
    var = torch.rand(size, dtype=torch.float64, generator=generator) + 0.5
    return mean.to(dtype), var.to(dtype)


def _bgn(G: int, training: bool) -> Normalizer:
    def call(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        running = (None, None) if training else _stats(G, torch.float64)
        return F.batch_group_norm(x, G, *running, weight, bias, training=training)

    return call


def _gbgn(G: int, blocks: int, training: bool) -> Normalizer:
    def call(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        running = (None, None) if training else _stats(min(G, C), torch.float64)
        return F.general_batch_group_norm(x, G, blocks, *running, weight, bias, training=training)

    return call


# for x of shape (4, 6, ...) with at least 12 features
NORMALIZERS: dict[str, Normalizer] = {
    **{f"bgn-{G}-{m}": _bgn(G, m == "train") for G in (1, 3, 4, 6, 12) for m in ("train", "eval")},
    **{
        f"gbgn-{G}x{B}-{m}": _gbgn(G, B, m == "train")
        for G, B in [(2, 2), (32, 1)]
        for m in ("train", "eval")
    },
    **{f"gn-{G}": (lambda x, w, b, G=G: F.group_norm(x, G, w, b)) for G in (1, 2, 4, 6)},
    "pn": F.positional_norm,
}
