"""Count, mean and centered sum of squares, and how two sets of them become one.

Never E[x^2] - E[x]^2: that loses every digit where the mean is large beside the standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """The number of some elements, their mean, and M2 = sum((x - mean)^2)."""

    count: Tensor
    mean: Tensor
    M2: Tensor
    lost: float | Tensor = 1
    """Degrees of freedom that the means take: one per mean."""

    @property
    def var(self) -> Tensor:
        """The biased variance, M2 / count."""
        return self.M2 / self.count

    @property
    def unbiased_var(self) -> Tensor:
        """M2 / (count - 1) if there is one mean; NaN where count is 1."""
        return self.M2 / (self.count - self.lost)

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets together (Chan, Golub and LeVeque 1979); not both may be empty.

        >>> a = moments(torch.tensor([1.0, 2.0]), dim=(0,))
        >>> b = moments(torch.tensor([6.0]), dim=(0,))
        >>> a.merge(b).mean, a.merge(b).var == torch.tensor([1.0, 2.0, 6.0]).var(correction=0)
        (tensor(3.), tensor(True))
        """
        count = self.count + other.count
        delta = other.mean - self.mean
        share = other.count / count
        mean = torch.lerp(self.mean, other.mean, share)  # exact at both ends
        return Moments(count, mean, self.M2 + other.M2 + delta.square() * self.count * share)


def moments(x: Tensor, dim: tuple[int, ...]) -> Moments:
    """The moments of x over some dimensions.

    ``torch.var_mean`` is Welford's algorithm, in double on the CPU.
    """
    var, mean = torch.var_mean(x, dim, correction=0)
    size: Any = 1
    for d in dim:
        size = size * x.shape[d]
    # torch.jit.trace hands out sizes as tensors: kept, so that the graph serves other sizes
    count = size if isinstance(size, Tensor) else torch.full((), size, device=x.device)
    count = count.to(x.dtype)
    return Moments(count, mean, var * count)


def merged(parts: Tensor) -> Moments:
    """The moments of several sets together, from (3, sets, ...): counts, means and M2.

    Some counts may be zero.

    >>> sets = torch.tensor([[2.0, 1.0, 0.0], [1.5, 6.0, 0.0], [0.5, 0.0, 0.0]])
    >>> merged(sets).mean, merged(sets).var == torch.tensor([1.0, 2.0, 6.0]).var(correction=0)
    (tensor(3.), tensor(True))
    """
    count, mean, M2 = parts.double()
    total = count.sum(0)
    center = (count * mean).sum(0) / total
    scatter = (M2 + count * (mean - center).square()).sum(0)
    return Moments(*(t.to(parts.dtype) for t in (total, center, scatter)))
