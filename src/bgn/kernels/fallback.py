"""The backward pass for tensors that are not plain: by the definition, whoever ran the forward.

Autograd may hand back anything: hooks change what was saved, and gradients may be batched, dual,
negated, subclasses, or wanted as differentiable functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bgn.activation import Activation
from bgn.kernels import definition
from bgn.kernels.eligible import refuse_freed
from bgn.partition import Partition

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # of x, weight and bias
AllGradients = tuple[
    Tensor | None, Tensor | None, Tensor | None, Tensor | None
]  # and of a residual


def check_saved(x: Tensor, dtype: torch.dtype, shape: torch.Size, device_type: str) -> None:
    """Raise an error where a saved-tensor hook returned something else than the input."""
    if x.dtype is not dtype or x.shape != shape or x.device.type != device_type:
        raise RuntimeError(
            f"a saved-tensor hook returned a {x.dtype} tensor of shape {tuple(x.shape)} on"
            f" {x.device} for the input of a normalizer, which was a {dtype} tensor of"
            f" shape {tuple(shape)} on {device_type}"
        )


def gradients(
    gy: Tensor,
    x: Tensor,
    part: Partition | None,
    given: Sequence[Tensor] | None,
    correct: Tensor | None,
    weight: Tensor | None,
    eps: float,
    affine: torch.dtype,
    needs: tuple[bool, ...],
) -> Gradients:
    """The gradients that are needed; ``part`` is None for PN, ``affine`` the parameters' dtype.

    ``given`` are the statistics of eval mode, ``correct`` the corrections of renormalization.
    """
    refuse_freed(gradient=gy, input=x, weight=weight)
    with torch._C.DisableTorchFunctionSubclass():  # as backward passes in C++
        if part is None:
            gx, gw, gb = definition.positional_gradients(gy, x, weight, eps)
        elif given:
            mean, var = given
            gx, gw, gb = definition.gradients_with(gy, x, part, mean, var, weight, eps)
        else:
            gx, gw, gb = definition.gradients(gy, x, part, weight, eps, correct)
    return (
        gx if needs[0] else None,
        gw.to(affine) if needs[1] else None,
        gb.to(affine) if needs[2] else None,
    )


def gradients_after(
    gy: Tensor,
    x: Tensor,
    part: Partition,
    given: Sequence[Tensor] | None,
    correct: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor | None,
    act: Activation,
    eps: float,
    affine: torch.dtype,
    needs: tuple[bool, ...],
) -> AllGradients:
    """The same where a residual and an activation followed. The residual's is the fourth.

    ``y`` is the output where the argument's sign is taken from it: wherever there was a residual,
    unless the activation is the identity.
    """
    refuse_freed(gradient=gy, input=x, weight=weight, bias=bias, output=y)
    gu = gy
    if act.name != "identity":
        with torch._C.DisableTorchFunctionSubclass():  # as backward passes in C++
            u = argument(x, part, weight, bias, eps, correct, given) if y is None else y
            gu = act.gradient(gy, u).to(x.dtype)
    found: Gradients = None, None, None
    if any(needs[:3]):
        found = gradients(gu, x, part, given, correct, weight, eps, affine, needs[:3])
    return *found, gu if needs[3] else None


def argument(
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    correct: Tensor | None,
    given: Sequence[Tensor] | None = None,
) -> Tensor:
    """The argument of the activation without a residual, as a differentiable function of x."""
    if given:
        return definition.normalize_with(x, part, given[0], given[1], weight, bias, eps)
    of = definition.moments(x, part)
    rstd = torch.rsqrt(of.var + eps)
    return definition.write(x, part, of.mean, rstd, weight, bias, correct)
