"""What gradient checkpointing needs: a forward that runs again has the reference of the first time.

The running statistics have moved when a checkpointed segment runs again in the backward pass. What
they were the first time is found by the batch's means, which are the same to the bit.
"""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bgn.kernels.eligible import TYPES, no_transform
from bgn.renorm import Reference

MOST = 128  # forwards of a layer that may wait for their backward


@dataclass
class _Forward:
    means: Tensor
    reference: Reference
    used: bool = False


_forwards: WeakKeyDictionary[Any, deque[_Forward]] = WeakKeyDictionary()


def recomputing() -> bool:
    """Whether this forward runs inside a backward pass: a checkpointed segment's second run."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def may_be_checkpointed() -> bool:
    """Whether this forward may be the first or the second run of a checkpointed segment."""
    if torch.compiler.is_compiling():
        return False
    if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
        return True
    return _hooks is None or _hooks(True) is not None


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor's numbers can be read now, without stopping a compiler or a transform."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in TYPES
        and not tensor.is_meta
        and no_transform()
    )


def cache_reference(layer: Any, means: Tensor, reference: Reference) -> None:
    """Keep the reference of a forward that may run again."""
    kept = reference._replace(mean=reference.mean.clone(), var=reference.var.clone())
    _forwards.setdefault(layer, deque(maxlen=MOST)).append(_Forward(means, kept))


def cached_reference(layer: Any, means: Tensor) -> Reference | None:
    """The reference of the first time, or None for a forward that is not known.

    Of equal batches the last one comes first, as in a backward pass.
    """
    known = _forwards.get(layer, deque())
    same = [f for f in reversed(known) if _equal(f.means, means)]
    if not same:
        if len(known) == MOST:
            warnings.warn(
                f"a forward inside a backward pass is none of the last {MOST} of its layer: it is"
                " corrected towards the running statistics as they are now (renorm)",
                stacklevel=4,
            )
        return None
    if all(f.used for f in same):  # another backward pass through the same graph
        for f in same:
            f.used = False
    found = next(f for f in same if not f.used)
    found.used = True
    return found.reference


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.device == b.device and torch.equal(a, b)
