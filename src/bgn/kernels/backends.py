"""Which backend runs where: the best one, or the one that was asked for.

A CPU has one answer. On a GPU it depends on the shape too (:func:`gpu_choice`).

The environment variable ``BGN_BACKEND`` forces a backend by name; ``auto``, the default, takes the
best one available for each device. It is read once, when the package is imported.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bgn.kernels import cpu, triton
from bgn.kernels.eligible import DEVICES
from bgn.kernels.pieces import pieces_of
from bgn.kernels.plans import Plan

VARIABLE = "BGN_BACKEND"
_here = {"cpu": cpu.available(), "triton": triton.available()}
# best first: those that may run here
BACKENDS = tuple(b for b in ("cpu", "triton", "aten", "definition") if _here.get(b, True))


class Choice(NamedTuple):
    """A backend's name, and why it was taken."""

    name: str
    reason: str


def choose(asked: str) -> Choice:
    """The backend to use when the environment asks for ``asked``."""
    if asked in ("", "auto"):
        missing = "" if cpu.available() else f"; cpu is {cpu.why_not}"
        best = "cpu" if "cpu" in BACKENDS else "aten"  # on a CPU
        return Choice(best, f"the best one available{missing}")
    accepted = f"accepted: auto, {', '.join(BACKENDS)}"
    if asked == "cpu" and not cpu.available():
        raise ValueError(f"{VARIABLE}='cpu', but cpu is {cpu.why_not}; {accepted}")
    if asked == "triton" and not triton.available():
        raise ValueError(f"{VARIABLE}='triton', but {triton.why_not()}; {accepted}")
    if asked not in BACKENDS:
        raise ValueError(f"{VARIABLE}={asked!r} is not a backend; {accepted}")
    return Choice(asked, f"forced by {VARIABLE}={asked}")


class Active(NamedTuple):
    """Whether the C core runs plain calls; on which kinds of devices triton and aten run others.

    Where both do, triton is asked first.
    """

    core: bool
    aten: tuple[str, ...]
    triton: tuple[str, ...] = ()
    forced: bool = False
    """Whether triton was asked for: then it runs also what torch's kernels do as well."""


def _by_device(asked: str) -> Active:
    """What is active when the environment asks for ``asked``."""
    name = choose(asked).name
    if name == "aten":
        gpus = triton.DEVICES if _is_auto(asked) and "triton" in BACKENDS else ()
        return Active(False, DEVICES, gpus)
    if _is_auto(asked) and name == "cpu":
        others = tuple(device for device in DEVICES if device != "cpu")
        gpus = triton.DEVICES if "triton" in BACKENDS and "cpu" not in triton.DEVICES else ()
        return Active(True, others, gpus)
    if name == "triton":
        return Active(False, (), triton.DEVICES, forced=True)
    return Active(name == "cpu", ())


def _is_auto(asked: str) -> bool:
    return asked in ("", "auto")


FILLING = 2  # channels per multiprocessor from which torch's kernels, a block each, fill a device


def gpu_choice(plan: Plan, processors: int) -> Choice:
    """Who normalizes plain tensors on a GPU with so many multiprocessors, argued from traffic.

    What triton may read at all is another question (``triton.is_eligible``): not float64.

    >>> import torch
    >>> from bgn.kernels.plans import plan
    >>> from bgn.partition import slices
    >>> x = torch.empty(32, 512, 28, 28, device="meta")
    >>> [gpu_choice(plan(slices, x, G), 132).name for G in (1, 16, 512)]
    ['triton', 'triton', 'aten']
    """
    found = plan.choices.get(processors)
    if found is None:
        found = plan.choices[processors] = _gpu_choice(plan, processors)
    return found


def _gpu_choice(plan: Plan, processors: int) -> Choice:
    if plan.positional:
        return Choice("triton", "PN reads x once, and torch's layer_norm needs a copy of it")
    way = triton.launch_of(plan, processors)
    if way.fused is not None:
        return Choice("triton", "a statistic fits one program: x is read once")
    if plan.numel >= 1 << 31:
        return Choice("triton", "torch's batch_norm has 32-bit offsets")
    pieces = pieces_of(plan)
    if not pieces.direct:
        return Choice("triton", "3 + 5 passes and 6 launches; torch's kernels take 3 + 7 and 16")
    last = plan.layout is not torch.contiguous_format
    if last and pieces.own:
        return Choice("aten", "batch_norm has the same traffic in 3 launches instead of 6")
    if pieces.rows * pieces.K >= FILLING * processors:
        return Choice("aten", "batch_norm has the same traffic in 3 launches instead of 6")
    return Choice("triton", "batch_norm, with a block per channel, would not fill the device")


def is_for_triton(x: Tensor, plan: Plan) -> bool:
    """Whether triton is asked to normalize x before torch's kernels are."""
    if x.device.type not in active.triton:
        return False
    if active.forced or not plan.kept or plan.empty or not triton.kernels():
        return True
    return gpu_choice(plan, triton.kernels().processors(x.device)).name == "triton"


_asked = os.environ.get(VARIABLE, "")
choice = choose(_asked)
active = _by_device(_asked)
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
    global active
    before, active = active, _by_device(name)
    try:
        yield
    finally:
        active = before


def devices() -> str:
    """Which backend runs plain calls on which kinds of devices.

    >>> with use("definition"):
    ...     devices()
    'all: definition'
    """
    rows = ["cpu: cpu"] if active.core else []
    both = [device for device in active.triton if device in active.aten]
    if active.triton:
        rows.append(f"{', '.join(active.triton)}: triton{', aten' if both else ''}")
    if active.aten:
        rows.append(f"{', '.join(d for d in active.aten if d not in both)}: aten")
    rows.append(f"{'others' if rows else 'all'}: definition")
    return "; ".join(rows)


def on_gpus() -> str:
    """What plain tensors on CUDA and ROCm devices get, and why."""
    if not active.triton:
        forced = f"{choice.name} was asked for" if choice.reason.startswith("forced") else ""
        return f"no triton ({triton.why_not() or forced or 'another backend was asked for'})"
    if triton.why_not():
        return f"no triton ({triton.why_not()})"
    types = ", ".join(str(dtype).removeprefix("torch.") for dtype in triton.TYPES)
    rest = "" if active.forced else "; aten where it moves as much in fewer launches"
    return f"triton {triton.version()} for {types}{rest}"
