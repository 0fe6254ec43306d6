"""What may follow a normalizer in the same pass: y = f(z + residual), where z is its output.

    relu         max(u, 0)
    leaky_relu   u where u > 0, slope * u elsewhere
    silu         u / (1 + exp(-u))
    hardswish    u * min(max(u + 3, 0), 6) / 6
    identity     u, for a residual without an activation

The derivatives are torch's, at the corners too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn import checks

NAMES = ("relu", "leaky_relu", "silu", "hardswish", "identity")
INPUT, OUTPUT = SAVES = "input", "output"
SLOPE = 0.01  # of nn.LeakyReLU


class Activation(NamedTuple):
    """An activation by name, and what the backward pass of the fused layer keeps."""

    name: str
    slope: float = SLOPE
    """Of leaky_relu where its argument is negative."""
    save: str = INPUT
    """``"output"``: the input of the normalizer is computed again from the output."""

    @property
    def is_piecewise(self) -> bool:
        """Whether the derivative depends on the sign of the argument alone."""
        return self.name in ("relu", "leaky_relu", "identity")

    @property
    def negative_slope(self) -> float:
        """The derivative left of 0 of a piecewise activation."""
        return {"relu": 0.0, "identity": 1.0}.get(self.name, self.slope)

    @property
    def keeps_sign(self) -> bool:
        """Whether the output tells the argument's sign, where the derivative depends on it."""
        return not self.is_piecewise or self.negative_slope >= 0

    def __call__(self, u: Tensor) -> Tensor:
        """The activation, as torch's operator."""
        if self.name == "relu":
            return F.relu(u)
        if self.name == "leaky_relu":
            return F.leaky_relu(u, self.slope)
        if self.name == "silu":
            return F.silu(u)
        return F.hardswish(u) if self.name == "hardswish" else u

    def gradient(self, gy: Tensor, u: Tensor) -> Tensor:
        """gy times the derivative at u, as a differentiable function.

        For a piecewise one u may be anything of the argument's sign, the output for example.
        """
        if self.name == "relu":
            return torch.where(u <= 0, torch.zeros_like(gy), gy)
        if self.is_piecewise:
            return torch.where(u > 0, gy, gy * self.negative_slope)
        if self.name == "silu":
            s = torch.sigmoid(u)
            return gy * (s * (1 + u * (1 - s)))
        ramp = torch.where(u >= 3, torch.ones_like(u), u / 3 + 0.5)
        return gy * torch.where(u <= -3, torch.zeros_like(u), ramp)

    def inverse(self, y: Tensor) -> Tensor:
        """The argument that gives y; for a slope above 0."""
        return torch.where(y > 0, y, y / self.negative_slope)


class After(NamedTuple):
    """What follows a normalizer: ``after(z)`` is act(z + residual)."""

    act: Activation
    residual: Tensor | None = None

    def __call__(self, z: Tensor) -> Tensor:
        return self.act(z if self.residual is None else z + self.residual)


def checked(name: str, slope: float = SLOPE, save: str = INPUT) -> Activation:
    """An activation from a user's arguments."""
    checks.one_of("act", name, NAMES)
    checks.one_of("save", save, SAVES)
    if isinstance(slope, bool) or not isinstance(slope, (int, float)):
        raise TypeError(f"negative_slope={slope!r} is a {type(slope).__name__}; expected a float")
    if save == OUTPUT:
        refuse_not_invertible(name, float(slope))
    return Activation(name, float(slope), save)


def refuse_not_invertible(name: str, slope: float) -> None:
    """Raise an error where the output does not determine the input."""
    if name not in ("leaky_relu", "identity"):
        raise ValueError(
            f"save='output' needs act='leaky_relu' (or 'identity'), got act={name!r}: its input"
            " cannot be computed from its output; expected save='input'"
        )
    if name == "leaky_relu" and not 0 < slope < float("inf"):
        raise ValueError(
            f"save='output' needs negative_slope > 0, got {slope}: negative inputs would be lost"
        )


_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
    nn.Identity: "identity",
}


def activation_of(module: Any, save: str = INPUT) -> Activation | None:
    """The activation that a module computes; None for one that is to be called."""
    name = _MODULES.get(type(module))
    if name is None or module._forward_hooks or module._forward_pre_hooks:
        return None
    if module._backward_hooks or module._backward_pre_hooks:
        return None
    return Activation(name, module.negative_slope if name == "leaky_relu" else SLOPE, save)


def is_invertible_module(module: nn.Module) -> bool:
    """Whether the output of a module determines its input."""
    slope = module.negative_slope if type(module) is nn.LeakyReLU else 0.0
    return type(module) is nn.Identity or 0 < slope < float("inf")


def module_of(act: Activation, inplace: bool = True) -> nn.Module:
    """The module of torch.nn for an activation."""
    if act.name == "identity":
        return nn.Identity()
    if act.name == "leaky_relu":
        return nn.LeakyReLU(act.slope, inplace)
    for kind, name in _MODULES.items():
        if name == act.name:
            made: Any = kind
            module: nn.Module = made(inplace=inplace)
            return module
    raise AssertionError(act)
