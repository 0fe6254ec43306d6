"""What an optimizer remembers of weight and bias, carried over to the new ones.

With w' = k*w and b' = b + s*w the chain rule gives the gradients dL/db' = dL/db and dL/dw' = (dL/dw - s*dL/db) / k. Averages of
gradients (momentum) follow the same rule; averages of squared gradients do so as if the two gradients were
uncorrelated: v_w' = (v_w + s^2*v_b) / k^2.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

_FIRST = ("momentum_buffer", "exp_avg")
_SECOND = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")


def carry_state(optimizer: torch.optim.Optimizer, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> None:
    """Change the state of weight and bias in place; what is not understood is dropped, with a warning."""
    of_weight, of_bias = optimizer.state.get(weight), optimizer.state.get(bias)
    if not of_weight:
        return
    for key, value in list(of_weight.items()):
        if not isinstance(value, Tensor) or value.shape != weight.shape:
            continue
        k, s = scale.to(value.device), shift.to(value.device)
        partner = of_bias.get(key) if of_bias else None
        other = partner.double() if isinstance(partner, Tensor) else torch.zeros_like(k)
        if key in _FIRST:
            value.copy_((value.double() - s * other) / k)
        elif key in _SECOND:
            value.copy_((value.double() + s.square() * other) / k.square())
        else:
            warnings.warn(f"convert: the optimizer's {key!r} is not known here; state of that layer starts anew", stacklevel=2)
            optimizer.state.pop(weight)
            optimizer.state.pop(bias, None)
            return


def add_parameters(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    """Let the optimizer train parameters that did not exist before, with the settings of its first group."""
    if parameters:
        settings = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        optimizer.add_param_group({**settings, "params": parameters})
