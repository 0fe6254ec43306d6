"""Contrastive domain discrepancy (Kang et al. 2019).

It measures how far apart two domains are class by class, and how far classes are from each other:

    MMD(c, c') = mean k(s, s) + mean k(t, t) - 2 mean k(s, t)
    CDD = sum_c MMD(c, c) / M - sum_{c != c'} MMD(c, c') / (M (M - 1))

with s of class c in the source, t of class c' in the target, and M classes in all, not only those
at hand. k is a sum of Gaussians around the mean squared distance of what is compared.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the Gaussians, in mean squared distances
LEAST, MOST = 1e-5, 1e5  # a width, and a distance in widths


def cdd(source: Tensor, target: Tensor, classes: int) -> Tensor:
    """CDD of features (K, n, D) and (K, m, D) of K of the ``classes``, the same in both.

    >>> points = torch.tensor([[[0.0], [0.1]], [[5.0], [5.1]]])
    >>> float(cdd(points, points, 2)) < 0 < float(cdd(points, points.flip(0), 2))
    True
    """
    found = mmd(source, target)
    K = len(found)
    alike, total = found.diagonal().sum(), found.sum()
    apart = (total - alike) / (classes * (classes - 1)) if K > 1 else torch.zeros_like(total)
    return alike / classes - apart


def mmd(source: Tensor, target: Tensor, widths: Tensor | None = None) -> Tensor:
    """(K, K): squared maximum mean discrepancy of source class c (row) and target class c'."""
    ss, tt, st = _distances(source, target)
    widths = mean_distance(ss, tt, st) if widths is None else widths
    pairs = (ss[:, None], tt[None], st)  # (K, 1, n, n), (1, K, m, m), (K, K, n, m)
    within, beyond, between = (_kernel(d, widths[..., None, None]).mean((-1, -2)) for d in pairs)
    return within + beyond - 2 * between


@torch.no_grad()
def mean_distance(ss: Tensor, tt: Tensor, st: Tensor) -> Tensor:
    """(K, K): the mean squared distance between different samples.

    For each pair they are those of class c in the source and of class c' in the target together.
    """
    count = ss.shape[-1] + tt.shape[-1]
    total = ss.sum((-1, -2))[:, None] + tt.sum((-1, -2))[None] + 2 * st.sum((-1, -2))
    return total / (count * (count - 1))


def _distances(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances: (K, n, n) and (K, m, m) within the classes of a domain.

    Those between the classes of both are (K, K, n, m).
    """
    return (
        _squared(source, source),
        _squared(target, target),
        _squared(source[:, None], target[None]),
    )


def _squared(a: Tensor, b: Tensor) -> Tensor:
    """(..., n, D), (..., m, D) -> (..., n, m): squared distances.

    They are computed by differences: exactly 0 between equal samples, where they have a gradient.
    """
    return (a[..., :, None, :] - b[..., None, :, :]).square().sum(-1)


def _kernel(squared: Tensor, width: Tensor) -> Tensor:
    return sum(
        (torch.exp(-(squared / (width * w).clamp(min=LEAST)).clamp(max=MOST)) for w in WIDTHS),
        squared.new_zeros(()),
    )
