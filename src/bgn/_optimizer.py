"""What an optimizer remembers of weight and bias, carried over to the new ones.

With w' = k*w and b' = b + s*w the chain rule gives the gradients dL/db' = dL/db and dL/dw' = (dL/dw - s*dL/db) / k. Averages of
gradients (momentum) follow the same rule; averages of squared gradients do so as if the two gradients were
uncorrelated: v_w' = (v_w + s^2*v_b) / k^2.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from bgn.transfer import Transfer

_FIRST = ("momentum_buffer", "exp_avg")
_SECOND = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")


def carry_state(optimizer: torch.optim.Optimizer, changes: list[tuple[Any, Any, Transfer]]) -> None:
    """Change the state of weights and biases in place; what is not understood is dropped, with a warning."""
    unknown: set[str] = set()
    for weight, bias, carried in changes:
        of_weight, of_bias = optimizer.state.get(weight, {}), optimizer.state.get(bias, {})
        tensors = {key: value for key, value in of_weight.items() if isinstance(value, Tensor) and value.shape == weight.shape}
        strange = tensors.keys() - {*_FIRST, *_SECOND}
        if strange:
            unknown |= strange
            optimizer.state.pop(weight)
            optimizer.state.pop(bias, None)
            continue
        for key, value in tensors.items():
            k, s = carried.scale.to(value.device), carried.shift.to(value.device)
            partner = of_bias.get(key)
            other = partner.double() if isinstance(partner, Tensor) else torch.zeros_like(k)
            if key in _FIRST:
                value.copy_((value.double() - s * other) / k)
            else:
                value.copy_((value.double() + s.square() * other) / k.square())
    if unknown:
        names = ", ".join(sorted(unknown))
        warnings.warn(f"convert: the optimizer's {names} is not known here; the layers' state starts anew", stacklevel=3)


def add_parameters(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    """Let the optimizer train parameters that did not exist before, with the settings of its first group."""
    if parameters:
        settings = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        optimizer.add_param_group({**settings, "params": parameters})
