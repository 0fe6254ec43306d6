"""Run a model on a sample and see the shape of what reaches each normalizer.

A sample is one of

- the shape of one image, (C, H, W), or (C, L), or (C, D, H, W): a tuple of ints;
- a batch: a tensor (N, C, H, W), a tuple of the model's arguments, a dict, or a list of N images.

In a tuple or a dict, N is the first dimension of all tensors. What reaches a layer is scaled from
the N images of the sample to ``batch_size`` images.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bgn import checks
from bgn.surgery.kinds import identify, some_normalizers
from bgn.surgery.modules import observed
from bgn.surgery.support import convolution_dims

_AXES = ("C", "C, L", "C, H, W", "C, D, H, W")


class Inputs(NamedTuple):
    """Arguments for a model, and the number of images in them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    images: int


def visit(
    model: nn.Module,
    sample: Any,
    batch_size: int,
    see: Callable[[nn.Module, tuple[int, ...], int], None],
    *,
    argument: str = "sample",
) -> None:
    """Call ``see(layer, (C, H, W), N)`` for every call of a normalizer at a batch size.

    The model is run once, in eval mode and without gradients. ``argument`` is what errors call the
    sample. :func:`bgn.describe` and ``num_groups="auto"`` are built on this.
    """
    batch_size = checks.positive_int("batch_size", batch_size)
    found = some_normalizers(model)
    inputs = read_sample(model, sample, argument)

    def pass_on(layer: nn.Module, x: Tensor) -> None:
        see(layer, tuple(x.shape[1:]), max(1, batch_size * len(x) // inputs.images))

    with observed(model, found.values(), pass_on), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(*inputs.args, **inputs.kwargs)


def read_sample(model: nn.Module, sample: Any, argument: str = "sample") -> Inputs:
    """The arguments that a sample stands for; refuse a sample whose batch size is not certain."""
    accepted = "expected (C, H, W) of one image, or a batch for the model"
    if _is_int(sample):
        raise TypeError(f"{argument}={sample} is an int; {accepted}")
    if isinstance(sample, (tuple, list)) and all(map(_is_int, sample)):
        return _zeros(model, tuple(checks.positive_int(argument, n) for n in sample), argument)
    if isinstance(sample, Tensor):
        dims = _input_dims(model)
        if dims and sample.dim() - 1 in dims and sample.dim() - 2 not in dims:
            raise ValueError(
                f"{argument} is a tensor of shape {tuple(sample.shape)} without a batch dimension;"
                f" expected a batch, {argument}[None], or a shape, {tuple(sample.shape)}"
            )
    if isinstance(sample, list):
        if not all(isinstance(image, Tensor) for image in sample):
            kinds = ", ".join(sorted({type(item).__name__ for item in sample}))
            raise TypeError(
                f"{argument} is a list of {kinds}; expected a list of images, which are tensors"
            )
        return Inputs((sample,), {}, len(sample))
    images = _first_dimension(sample, argument, accepted)
    if isinstance(sample, tuple):
        return Inputs(sample, {}, images)
    if isinstance(sample, dict) and set(sample) <= {*inspect.signature(model.forward).parameters}:
        return Inputs((), sample, images)
    return Inputs((sample,), {}, images)


def _zeros(model: nn.Module, shape: tuple[int, ...], argument: str) -> Inputs:
    """Two images of zeros: a layer without running statistics needs a batch."""
    dims = _input_dims(model)
    if dims and len(shape) - 1 not in dims:
        shapes = " or ".join(f"({_AXES[n]})" for n in sorted(dims))
        hint = f", {argument}={shape[1:]}" if len(shape) - 2 in dims else ""
        raise ValueError(
            f"{argument}={shape} has {len(shape)} numbers, and the model's layers take {shapes}"
            f" without a batch dimension; expected such a shape{hint},"
            " or a batch for the model as a tensor"
        )
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return Inputs((torch.zeros(2, *shape, device=like.device, dtype=like.dtype),), {}, 2)


def _first_dimension(sample: Any, argument: str, accepted: str) -> int:
    """The number of images in tensors, however nested."""
    tensors = [t for t in tree_leaves(sample) if isinstance(t, Tensor) and t.dim()]
    if not tensors:
        raise TypeError(f"{argument} is a {type(sample).__name__} without a tensor; {accepted}")
    sizes = {len(tensor) for tensor in tensors}
    if len(sizes) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(
            f"{argument} has tensors of shapes {shapes}, whose first dimensions differ, so the"
            " number of images is not certain; expected the same first dimension everywhere"
        )
    return checks.positive_int(f"number of images in {argument}", sizes.pop())


def _input_dims(model: nn.Module) -> set[int]:
    """Possible numbers of spatial dimensions of the model's input; empty if anything is."""
    dims = convolution_dims(model)
    if dims:
        return dims
    if any(isinstance(module, nn.Linear) for module in model.modules()):
        return {0}
    kinds = [kind for kind in map(identify, model.modules()) if kind is not None]
    known = {kind.spatial for kind in kinds if kind.spatial is not None}
    return known | {0} if 1 in known else known


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, (Tensor, bool))
