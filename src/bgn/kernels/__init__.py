"""What computes: four sweeps over a feature map, and the choice of who runs them.

    moments(x)                              count, mean and M2 of every statistic
    write(x, mean, rstd)                    the output
    products(gy, x, mean, rstd)             the sums that the gradient needs
    write_gradient(gy, x, means)            the gradient

Between them there are only a few numbers per group. ``normalize`` and ``normalize_with`` are sweeps
in one call, with their derivatives. :mod:`~bgn.kernels.definition` says what each of them means, on
any device and under any transform; :mod:`~bgn.kernels.cpu` is the C core, for tensors that
:mod:`~bgn.kernels.eligible` knows to be plain; :mod:`~bgn.kernels.graph` is what torch.compile sees
of it. The choice is made here and nowhere else.

The environment variable ``BGN_BACKEND`` forces a backend by name; ``auto``, the default, takes the
best one available. It is read once, when the package is imported.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bgn import checks
from bgn.kernels import cpu, definition, graph
from bgn.kernels.eligible import refuse_freed
from bgn.kernels.plans import Plan, plan, positions, sizes
from bgn.moments import Moments
from bgn.running import Running

__all__ = [
    "BACKENDS",
    "Plan",
    "choice",
    "is_eligible",
    "moments",
    "normalize",
    "normalize_with",
    "plan",
    "positional",
    "positions",
    "products",
    "sizes",
    "use",
    "write",
    "write_gradient",
]

VARIABLE = "BGN_BACKEND"
BACKENDS = ("cpu", "definition") if cpu.available() else ("definition",)  # best first


class Choice(NamedTuple):
    """A backend's name, and why it was taken."""

    name: str
    reason: str


def choose(asked: str) -> Choice:
    """The backend to use when the environment asks for ``asked``."""
    if asked in ("", "auto"):
        missing = "" if cpu.available() else f"; cpu is {cpu.why_not}"
        return Choice(BACKENDS[0], f"the best one available{missing}")
    accepted = f"accepted: auto, {', '.join(BACKENDS)}"
    if asked == "cpu" and not cpu.available():
        raise ValueError(f"{VARIABLE}='cpu', but cpu is {cpu.why_not}; {accepted}")
    if asked not in BACKENDS:
        raise ValueError(f"{VARIABLE}={asked!r} is not a backend; {accepted}")
    return Choice(asked, f"forced by {VARIABLE}={asked}")


choice = choose(os.environ.get(VARIABLE, ""))
_fast = choice.name == "cpu"
if not os.environ.get(VARIABLE) and not cpu.available():
    warnings.warn(
        f"the C core of bgn is {cpu.why_not}; the definition is used, which is several times slower"
        f" on a CPU ({VARIABLE}=definition says that this is wanted)",
        RuntimeWarning,
        stacklevel=2,
    )


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Within the context, another backend; for tests and benchmarks, not for threads."""
    global _fast
    before, _fast = _fast, choose(name).name == "cpu"
    try:
        yield
    finally:
        _fast = before


def is_eligible(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the C core runs a call with these tensors: then they need no other check."""
    return _fast and cpu.is_eligible(x, plan, weight, bias)


def normalize(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None = None,
) -> Tensor:
    """Normalize with the statistics of x itself, and move the running ones towards them."""
    if _fast:
        y = cpu.run(x, plan, weight, bias, eps, running, None)
        if y is not None:
            return y
    part = plan.part
    checks.affine(x, part.C, weight, bias)
    refuse_freed(input=x, weight=weight, bias=bias)
    if running is not None:
        checks.statistics(x, part, running.mean, running.var, moving=True)
        refuse_freed(running_mean=running.mean, running_var=running.var)
    if torch.compiler.is_compiling():
        if _fast and graph.is_eligible(x, weight, bias, running):
            return graph.normalize(x, part, weight, bias, eps, running)
    elif x.is_mkldnn:  # a question that would leave a node in a compiled graph
        dense = normalize(x.to_dense(), plan, weight, bias, eps, running)
        return dense.to_mkldnn()
    per_sample = part.B == part.N and part.C % part.G == 0 and running is None
    if per_sample and plan.smallest_count > 1:
        return torch.nn.functional.group_norm(x, part.G, weight, bias, eps)  # fused on any device
    return definition.normalize(x, part, weight, bias, eps, running)


def normalize_with(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalize with given statistics (G,), those of eval mode."""
    if _fast:
        y = cpu.run(x, plan, weight, bias, eps, None, (mean, var))
        if y is not None:
            return y
    checks.affine(x, plan.part.C, weight, bias)
    checks.statistics(x, plan.part, mean, var)
    refuse_freed(input=x, weight=weight, bias=bias, running_mean=mean, running_var=var)
    if not torch.compiler.is_compiling() and x.is_mkldnn:
        dense = normalize_with(x.to_dense(), plan, mean, var, weight, bias, eps)
        return dense.to_mkldnn()
    return definition.normalize_with(x, plan.part, mean, var, weight, bias, eps)


def positional(
    x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalize every position of every sample across its channels (PN)."""
    if _fast:
        y = cpu.run(x, plan, weight, bias, eps, None, None)
        if y is not None:
            return y
    checks.affine(x, plan.part.C, weight, bias)
    refuse_freed(input=x, weight=weight, bias=bias)
    return definition.positional(x, weight, bias, eps)


def moments(x: Tensor, plan: Plan) -> Moments:
    """Count, mean and M2 of every statistic, (B, G) each."""
    if is_eligible(x, plan, None, None) and not _is_recorded(x):
        return cpu.moments(x, plan)
    return definition.moments(x, plan.part)


def write(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """y = (x - mean) * rstd * weight + bias, with (B, G) statistics."""
    if (
        is_eligible(x, plan, weight, bias)
        and _are_readable(mean, rstd, x, plan)
        and not _is_recorded(x, weight, bias)
    ):
        return cpu.write(x, plan, mean, rstd, weight, bias)
    return definition.write(x, plan.part, mean, rstd, weight, bias)


def products(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums for the gradient: (2, B, G) of g and g * xhat; (C,) of gy * xhat and of gy."""
    if _is_eligible_gradient(gy, x, plan, weight, mean, rstd):
        return cpu.products(gy, x, plan, weight, mean, rstd)
    return definition.products(gy, x, plan.part, weight, mean, rstd)


def write_gradient(
    gy: Tensor,
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    means: Tensor | None,
) -> Tensor:
    """gx = rstd * (g - means[0] - xhat * means[1]), with g = gy * weight[c]."""
    if _is_eligible_gradient(gy, x, plan, weight, mean, rstd):
        return cpu.write_gradient(gy, x, plan, weight, mean, rstd, means)
    return definition.write_gradient(gy, x, plan.part, weight, mean, rstd, means)


def _is_eligible_gradient(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> bool:
    return (
        gy.dtype is x.dtype
        and gy.shape == x.shape
        and is_eligible(x, plan, weight, None)
        and is_eligible(gy, plan, weight, None)
        and _are_readable(mean, rstd, x, plan)
        and not _is_recorded(gy, x, weight, mean, rstd)
    )


def _are_readable(mean: Tensor, rstd: Tensor, x: Tensor, plan: Plan) -> bool:
    """Whether the sweeps of the C core may read (B, G) statistics."""
    wide = definition.wide_dtype(x)
    return mean.dtype is rstd.dtype is wide and cpu.are_readable(
        (mean.flatten(), rstd.flatten()), x, plan
    )


def _is_recorded(*tensors: Tensor | None) -> bool:
    """Whether autograd records what is done to these tensors: a single sweep has no derivative."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
