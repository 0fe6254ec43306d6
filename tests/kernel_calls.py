"""Kernels called with a partition of the test's own making."""

from dataclasses import dataclass

from torch import Tensor

from bgn import kernels
from bgn.kernels import Plan
from bgn.partition import Partition
from bgn.running import Running


@dataclass(frozen=True)
class _Fixed:
    part: Partition

    def __call__(self, *_: int) -> Partition:
        return self.part


def plan(x: Tensor, part: Partition) -> Plan:
    """The plan for x and this very partition."""
    return kernels.plan(_Fixed(part), x, part.G, None)


def normalize(
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None = None,
) -> Tensor:
    return kernels.normalize(x, plan(x, part), weight, bias, eps, running)


def normalize_with(
    x: Tensor,
    part: Partition,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    return kernels.normalize_with(x, plan(x, part), mean, var, weight, bias, eps)


def positional(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return kernels.positional(x, kernels.plan(kernels.positions, x, 1), weight, bias, eps)


def is_eligible(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the C core runs a batch normalization of x."""
    return kernels.is_eligible(x, kernels.plan(kernels.positions, x, 1), weight, bias)
