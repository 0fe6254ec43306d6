"""Projected gradient descent (Madry et al. 2018): an attack on image classifiers.

It finds, near given images, those that a network gets most wrong. Near means that no value changes
by more than a bound (L-infinity), and that values stay in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class PGD:
    """``steps`` steps of ``size`` along the sign of the gradient of the cross-entropy.

    The true labels are used. With ``start`` the steps begin at a random place of the ball.
    ``restarts`` above 1 needs ``start`` and is made for testing: an image that is misclassified
    as it is stays. Others become the first attempt that is misclassified or, if none is, the one
    with the highest loss. Images must not depend on each other then, as they do not in eval mode.
    """

    bound: float
    size: float
    steps: int
    start: bool = False
    restarts: int = 1

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Attack images: (N, C, H, W) in [0, 1] -> the same.

        The network stays in the mode that it is in; its parameters get no gradients.
        """
        low, high = ball(x, self.bound)
        if self.restarts == 1:
            return self._attempt(model, x, y, low, high)
        found = x.detach().clone()
        loss, right = _judged(model, x, y)
        for _ in range(self.restarts):
            left = right.nonzero().flatten()
            if not len(left):
                break
            own = self._attempt(model, x[left], y[left], low[left], high[left])
            own_loss, right[left] = _judged(model, own, y[left])
            better = (own_loss > loss[left]) | ~right[left]
            found[left[better]], loss[left[better]] = own[better], own_loss[better]
        return found

    def _attempt(self, model: nn.Module, x: Tensor, y: Tensor, low: Tensor, high: Tensor) -> Tensor:
        own = x.detach()
        if self.start:
            own = (own + torch.empty_like(own).uniform_(-self.bound, self.bound)).clamp(low, high)
        with torch.enable_grad():
            for _ in range(self.steps):
                own.requires_grad_(True)
                loss = F.cross_entropy(
                    model(own).float(), y, reduction="sum"
                )  # a mean's gradients may underflow
                (gradient,) = torch.autograd.grad(loss, own)
                own = torch.add(own.detach(), gradient.sign(), alpha=self.size).clamp(low, high)
        return own.detach()


def ball(x: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """The lowest and highest values allowed: within the bound of x, and in [0, 1].

    They hold exactly, not up to rounding.
    """
    exact = x.double()
    low, high = (
        (exact - bound).to(x.dtype),
        (exact + bound).to(x.dtype),
    )  # rounded to nearest: at most one step too far
    low = torch.where(exact - low.double() > bound, torch.nextafter(low, x), low)
    high = torch.where(high.double() - exact > bound, torch.nextafter(high, x), high)
    return low.clamp_(0, 1), high.clamp_(0, 1)


@torch.no_grad()
def _judged(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) losses, and whether the labels are right."""
    logits = model(x).float()
    return F.cross_entropy(logits, y, reduction="none"), logits.argmax(1) == y
