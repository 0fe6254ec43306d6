"""Carry an optimizer's state of weight and bias over to their new values.

With w' = k*w and b' = b + s*w the chain rule gives the gradients dL/db' = dL/db and
dL/dw' = (dL/dw - s*dL/db) / k. Averages of gradients (momentum) follow the same rule. Averages of
squared gradients follow it under the assumption that the two gradients are uncorrelated:
v_w' = (v_w + s^2*v_b) / k^2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bgn.surgery.transfer import Transfer

_FIRST = ("momentum_buffer", "exp_avg")
_SECOND = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")


def unknown_state(optimizer: torch.optim.Optimizer, weight: Any) -> list[str]:
    """Names of the state of a weight that cannot be carried over."""
    if isinstance(optimizer, torch.optim.LBFGS):
        return ["history"]
    known = {*_FIRST, *_SECOND}
    if isinstance(optimizer, torch.optim.RMSprop):
        known.discard("momentum_buffer")  # an average of steps, not of gradients
    state = optimizer.state.get(weight, {})
    return [key for key, value in state.items() if _like(value, weight) and key not in known]


def carry_state(optimizer: torch.optim.Optimizer, changes: list[tuple[Any, Any, Transfer]]) -> None:
    """Change the state of weights and biases in place; drop state that is not known."""
    for weight, bias, carried in changes:
        of_weight, of_bias = optimizer.state.get(weight, {}), optimizer.state.get(bias, {})
        if unknown_state(optimizer, weight):
            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.state.clear()  # its history mixes all parameters
            optimizer.state.pop(weight, None)
            optimizer.state.pop(bias, None)
            continue
        for key, value in of_weight.items():
            if not _like(value, weight):
                continue
            k, s = carried.scale.to(value.device), carried.shift.to(value.device)
            partner = of_bias.get(key)
            other = partner.double() if isinstance(partner, Tensor) else torch.zeros_like(k)
            if key in _FIRST:
                value.copy_((value.double() - s * other) / k)
            else:
                value.copy_((value.double() + s.square() * other) / k.square())


def _like(value: Any, weight: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == weight.shape


def add_parameters(
    optimizer: torch.optim.Optimizer, parameters: list[tuple[str, nn.Parameter]]
) -> None:
    """Add new parameters to an optimizer, with the settings of its first group."""
    if parameters:
        first = optimizer.param_groups[0]
        settings = {
            key: value for key, value in first.items() if key not in ("params", "param_names")
        }
        named: Any = (
            parameters if "param_names" in first else [parameter for _, parameter in parameters]
        )
        optimizer.add_param_group({**settings, "params": named})
