"""Labels for unlabeled images: spherical k-means from the centers of labeled ones.

The method is that of Kang et al. (2019).

Distance is half of one minus the cosine: 0 in the same direction, 1 in the opposite one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

TOLERANCE = 0.005  # mean distance by which centers may still move
MOST = 100  # rounds


class Clusters(NamedTuple):
    """Clusters of M images for K classes."""

    labels: Tensor  # (M,)
    distances: Tensor  # (M,), to the center of the label
    centers: Tensor  # (K, D)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """(M, D), (K, D) -> (M, K)."""
    return 0.5 * (1 - F.normalize(a, dim=1) @ F.normalize(b, dim=1).T)


def shift(a: Tensor, b: Tensor) -> float:
    """The mean distance of two sets of centers, one by one."""
    return float((0.5 * (1 - F.cosine_similarity(a, b, dim=1))).mean())


def centers(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(K, D): the sum of the features of every class; only its direction matters."""
    return features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)


def cluster(features: Tensor, start: Tensor) -> Clusters:
    """Spherical k-means of (M, D) features that starts from (K, D) centers, one per class.

    In the end each cluster gets the class of the starting center that it is matched with. A
    cluster that loses all its images is put back to where it began.
    """
    now = start
    for _ in range(MOST):
        labels = distance(features, now).argmin(1)
        new = centers(features, labels, len(start))
        empty = labels.bincount(minlength=len(start)) == 0
        new[empty] = start[empty]
        moved, now = shift(now, new), new
        if moved < TOLERANCE:
            break
    own = match(now, start)
    now = torch.empty_like(now).index_copy_(0, own, now)
    nearest = distance(features, now).min(1)
    return Clusters(nearest.indices, nearest.values, now)


def match(found: Tensor, start: Tensor) -> Tensor:
    """(K,): for every cluster its class, one each, with the least distance in all (Kuhn 1955)."""
    rows, columns = linear_sum_assignment(distance(found, start).double().cpu().numpy())
    assert (rows == range(len(found))).all()
    return torch.as_tensor(columns, device=found.device)


def trusted(found: Clusters, most: float, least: int) -> Tensor:
    """(M,): whether an image is nearer than ``most`` to its center.

    An image also counts as not trusted if fewer than ``least`` images of its class are that near.
    """
    near = found.distances < most
    count = found.labels[near].bincount(minlength=len(found.centers))
    return near & (count[found.labels] >= least)
