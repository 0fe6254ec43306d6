"""Gradient of the validation loss in the architecture parameters a of DARTS (Liu et al. 2019).

First order: dL_val(w, a)/da. Second order: the gradient of L_val(w'(a), a), where

    w' = w - r (m M + dL_train(w, a)/dw + d w)

is the step that SGD with momentum m, buffers M and decay d would take at the rate r. Its product
with a mixed second derivative is a finite difference along v = dL_val/dw', with w+- = w +- e v and
e = 0.01 / |v|:

    dL_val/da - r (dL_train(w+, a)/da - dL_train(w-, a)/da) / (2 e)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bgn_lab.data.sources import Batch

NEAR = 0.01


class Step:
    """A step of SGD: w - r (m M + gradient + d w)."""

    def __init__(self, optimizer: torch.optim.Optimizer, rate: float) -> None:
        self.optimizer, self.rate = optimizer, rate

    def __call__(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The weights after it; these and the optimizer are as before."""
        settings, found = self.optimizer.param_groups[0], {}
        for name, w in weights.items():
            buffer = self.optimizer.state.get(w, {}).get("momentum_buffer")
            push = gradients[name] + settings["weight_decay"] * w
            found[name] = w - self.rate * (
                push if buffer is None else push + settings["momentum"] * buffer
            )
        return found


def first_order(
    model: nn.Module, architecture: Sequence[Tensor], validation: Batch
) -> tuple[Tensor, ...]:
    """The weights get no gradients, which is a third of the work."""
    return torch.autograd.grad(_loss(model, validation), architecture)


def second_order(
    model: nn.Module, architecture: Sequence[Tensor], train: Batch, validation: Batch, step: Step
) -> tuple[Tensor, ...]:
    """Gradient at the weights after a step.

    The finite difference needs two more passes over the training batch. All passes move running
    statistics, except the one with the weights after the step.
    """
    known = {id(a) for a in architecture}
    weights = {name: p for name, p in model.named_parameters() if id(p) not in known}
    gradients = torch.autograd.grad(_loss(model, train), list(weights.values()))
    after = {
        name: w.detach().requires_grad_()
        for name, w in step(weights, dict(zip(weights, gradients, strict=True))).items()
    }
    ahead = {
        **after,
        **{name: value.clone() for name, value in model.named_buffers()},
    }  # statistics of the step are forgotten
    x, y = validation
    loss = F.cross_entropy(functional_call(model, ahead, (x,)), y)
    found = torch.autograd.grad(loss, [*architecture, *after.values()])
    direct, along = (
        found[: len(architecture)],
        dict(zip(after, found[len(architecture) :], strict=True)),
    )
    near = NEAR / math.sqrt(sum(float(v.double().square().sum()) for v in along.values()))
    before = {name: w.detach().clone() for name, w in weights.items()}
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            for name, w in weights.items():
                w.copy_(before[name]).add_(along[name], alpha=sign * near)
        sides.append(torch.autograd.grad(_loss(model, train), architecture))
    with torch.no_grad():
        for name, w in weights.items():
            w.copy_(before[name])  # to the bit
    scale = step.rate / (2 * near)
    return tuple(d - scale * (plus - minus) for d, plus, minus in zip(direct, *sides, strict=True))


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)
