"""What computes: four sweeps over a feature map, and the choice of who runs them.

    moments(x)                              count, mean and M2 of every statistic
    write(x, mean, rstd)                    the output
    products(gy, x, mean, rstd)             the sums that the gradient needs
    write_gradient(gy, x, means)            the gradient

Between them there are only a few numbers per group. ``normalize`` and ``normalize_with`` are sweeps
in one call, with their derivatives. :mod:`~bgn.kernels.definition` says what each of them means, on
any device and under any transform. For tensors that :mod:`~bgn.kernels.eligible` knows to be plain
there are two faster ones: :mod:`~bgn.kernels.cpu` is the C core, and :mod:`~bgn.kernels.aten` runs
on torch's own fused kernels where the C core does not: on other devices, or if it is missing.
:mod:`~bgn.kernels.graph` is what torch.compile sees of the C core. The choice is made here and
nowhere else.

The environment variable ``BGN_BACKEND`` forces a backend by name; ``auto``, the default, takes the
best one available for each device. It is read once, when the package is imported.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bgn import checks
from bgn.kernels import aten, cpu, definition, graph
from bgn.kernels.eligible import DEVICES, refuse_freed
from bgn.kernels.plans import Plan, plan, positions, sizes
from bgn.moments import Moments
from bgn.running import Running, update

__all__ = [
    "BACKENDS",
    "Plan",
    "choice",
    "devices",
    "is_eligible",
    "moments",
    "normalize",
    "normalize_with",
    "plan",
    "positional",
    "positions",
    "products",
    "sizes",
    "track",
    "use",
    "write",
    "write_gradient",
]

VARIABLE = "BGN_BACKEND"
BACKENDS = ("cpu", "aten", "definition")[0 if cpu.available() else 1 :]  # best first


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


def _by_device(asked: str) -> tuple[bool, tuple[str, ...]]:
    """Whether the C core runs plain calls, and on which kinds of devices aten runs the others."""
    name = choose(asked).name
    if name == "aten":
        return False, DEVICES
    if asked in ("", "auto") and name == "cpu":
        return True, tuple(device for device in DEVICES if device != "cpu")
    return name == "cpu", ()


_asked = os.environ.get(VARIABLE, "")
choice = choose(_asked)
_core, _aten = _by_device(_asked)
if not _asked and not cpu.available():
    warnings.warn(
        f"the C core of bgn is {cpu.why_not}; torch's own kernels are used, which are slower on a"
        f" CPU ({VARIABLE}=aten says that this is wanted)",
        RuntimeWarning,
        stacklevel=2,
    )


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Within the context, another backend; for tests and benchmarks, not for threads."""
    global _core, _aten
    before = _core, _aten
    _core, _aten = _by_device(name)
    try:
        yield
    finally:
        _core, _aten = before


def devices() -> str:
    """Which backend runs plain calls on which kinds of devices.

    >>> with use("definition"):
    ...     devices()
    'all: definition'
    """
    rows = ["cpu: cpu"] if _core else []
    if _aten:
        rows.append(f"{', '.join(_aten)}: aten")
    rows.append(f"{'others' if rows else 'all'}: definition")
    return "; ".join(rows)


def is_eligible(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the C core runs a call with these tensors: then they need no other check."""
    return _core and cpu.is_eligible(x, plan, weight, bias)


def normalize(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None = None,
) -> Tensor:
    """Normalize with the statistics of x itself, and move the running ones towards them."""
    if _core:
        y = cpu.run(x, plan, weight, bias, eps, running, None)
        if y is not None:
            return y
    part = plan.part
    per_sample = part.B == part.N and part.C % part.G == 0 and running is None
    # torch has a fused kernel for this one. Its backward pass fails for a bias without a weight,
    # and ends the process where a channels_last input needs no gradient.
    is_group_norm = (
        per_sample
        and plan.smallest_count > 1
        and (bias is None or weight is not None)
        and x.is_contiguous()
    )
    if x.device.type in _aten and not is_group_norm:
        y = aten.run(x, plan, weight, bias, eps, running, None)
        if y is not None:
            return y
    checks.affine(x, part.C, weight, bias)
    refuse_freed(input=x, weight=weight, bias=bias)
    if running is not None:
        checks.statistics(x, part, running.mean, running.var, moving=True)
        refuse_freed(running_mean=running.mean, running_var=running.var)
    if torch.compiler.is_compiling():
        if _core and graph.is_eligible(x, weight, bias, running):
            return graph.normalize(x, part, weight, bias, eps, running)
    elif x.is_mkldnn:  # a question that would leave a node in a compiled graph
        dense = normalize(x.to_dense(), plan, weight, bias, eps, running)
        return dense.to_mkldnn()
    if is_group_norm:
        y = torch.nn.functional.group_norm(x, part.G, weight, bias, eps)
        return y.to(x.dtype)  # on some devices autocast makes it float32
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
    if _core:
        y = cpu.run(x, plan, weight, bias, eps, None, (mean, var))
        if y is not None:
            return y
    if x.device.type in _aten:
        y = aten.run(x, plan, weight, bias, eps, None, (mean, var))
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
    if _core:
        y = cpu.run(x, plan, weight, bias, eps, None, None)
        if y is not None:
            return y
    if x.device.type in _aten:
        y = aten.positional(x, plan, weight, bias, eps)
        if y is not None:
            return y
    checks.affine(x, plan.part.C, weight, bias)
    refuse_freed(input=x, weight=weight, bias=bias)
    return definition.positional(x, weight, bias, eps)


Kernel = Any  # a module with the four sweeps


def _kernel(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> Kernel:
    """Who runs a sweep of x: the C core, aten, or None for the definition."""
    if is_eligible(x, plan, weight, bias):
        return cpu
    return aten if x.device.type in _aten and aten.is_eligible(x, plan, weight, bias) else None


def moments(x: Tensor, plan: Plan) -> Moments:
    """Count, mean and M2 of every statistic, (B, G) each."""
    kernel = None if _is_recorded(x) else _kernel(x, plan, None, None)
    return definition.moments(x, plan.part) if kernel is None else kernel.moments(x, plan)


def track(x: Tensor, plan: Plan, running: Running) -> None:
    """Move running statistics towards those of x, and write nothing else."""
    if is_eligible(x, plan, None, None) and cpu.track(x, plan, running):
        return
    checks.statistics(x, plan.part, running.mean, running.var, moving=True)
    refuse_freed(running_mean=running.mean, running_var=running.var)
    update(running, moments(x, plan))


def write(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """y = (x - mean) * rstd * weight + bias, with (B, G) statistics."""
    kernel = None if _is_recorded(x, weight, bias) else _kernel(x, plan, weight, bias)
    if kernel is None or not _are_readable(mean, rstd, x, plan, kernel):
        return definition.write(x, plan.part, mean, rstd, weight, bias)
    y: Tensor = kernel.write(x, plan, mean, rstd, weight, bias)
    return y


def products(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums for the gradient: (2, B, G) of g and g * xhat; (C,) of gy * xhat and of gy."""
    kernel = _gradient_kernel(gy, x, plan, weight, mean, rstd)
    if kernel is None:
        return definition.products(gy, x, plan.part, weight, mean, rstd)
    found: tuple[Tensor, Tensor, Tensor] = kernel.products(gy, x, plan, weight, mean, rstd)
    return found


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
    kernel = _gradient_kernel(gy, x, plan, weight, mean, rstd)
    if kernel is None:
        return definition.write_gradient(gy, x, plan.part, weight, mean, rstd, means)
    gx: Tensor = kernel.write_gradient(gy, x, plan, weight, mean, rstd, means)
    return gx


def _gradient_kernel(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> Kernel:
    """Who runs a sweep of gy and x, as ``_kernel``."""
    if gy.dtype is not x.dtype or gy.shape != x.shape or gy.device != x.device:
        return None
    if _is_recorded(gy, x, weight, mean, rstd):
        return None
    kernel = _kernel(x, plan, weight, None)
    if kernel is None or kernel is not _kernel(gy, plan, weight, None):
        return None
    return kernel if _are_readable(mean, rstd, x, plan, kernel) else None


def _are_readable(mean: Tensor, rstd: Tensor, x: Tensor, plan: Plan, kernel: Kernel) -> bool:
    """Whether a kernel's sweeps may read (B, G) statistics."""
    wide = definition.wide_dtype(x)
    return mean.dtype is rstd.dtype is wide and bool(
        kernel.are_readable((mean.flatten(), rstd.flatten()), x, plan)
    )


def _is_recorded(*tensors: Tensor | None) -> bool:
    """Whether autograd records what is done to these tensors: a single sweep has no derivative."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
