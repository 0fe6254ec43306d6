"""A picture of the features of two domains in two dimensions, before and after adaptation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bgn_lab.system import files
from bgn_lab.system.printable import shorten

Pair = tuple[Tensor, Tensor]
SHOWN, CLASSES = 600, 10  # points of each domain, and colors that can be distinguished


def choose(labels: Pair) -> Pair:
    """Choose the images of both domains to show.

    Of many classes, these are the ten that the source has most images of.
    """
    common = labels[0].bincount().argsort(descending=True, stable=True)[:CLASSES]
    source, target = (torch.isin(y, common).nonzero().flatten() for y in labels)
    return _few(source), _few(target)


def _few(index: Tensor) -> Tensor:
    """At most ``SHOWN`` of them, evenly spaced."""
    return index[torch.linspace(0, len(index) - 1, min(SHOWN, len(index))).long()]


def picture(
    found: Mapping[str, Pair], labels: Pair, names: tuple[str, str], title: str, path: Path
) -> None:
    """Draw features of both domains, (M, K) and (M', K), for each of some networks.

    Points are colored by class, of which there are at most ten.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    colors = {
        int(k): colormaps["tab10"](i)[:3] for i, k in enumerate(torch.unique(torch.cat(labels)))
    }

    figure = Figure(figsize=(5.2 * len(found), 5.4), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (when, both) in zip(panels, found.items(), strict=True):
        flat = project(both, labels[0])
        for points, y, marker, name in zip(flat, labels, ("o", "x"), names, strict=True):
            own = [colors[k] for k in y.tolist()]
            style: dict[str, Any] = (
                {"edgecolors": own, "facecolors": "none"} if marker == "o" else {"c": own}
            )
            axes.scatter(
                *points.T.numpy(),
                s=16,
                marker=marker,
                linewidths=0.9,
                label=shorten(name, 40),
                **style,
            )
        axes.set(title=when, xticks=[], yticks=[])
    panels[0].legend(loc="best", fontsize=10)
    figure.suptitle(
        f"{title}\none color per class; the target's labels were not used in training", fontsize=11
    )
    files.write_figure(path, figure)


def project(both: Pair, labels: Tensor) -> Pair:
    """Project onto the plane in which the classes of the source lie furthest apart.

    It is spanned by the first two principal components of their mean directions.
    """
    source, target = (F.normalize(features.double(), dim=1) for features in both)
    means = torch.stack([source[labels == k].mean(0) for k in torch.unique(labels)])
    center = means.mean(0)
    plane = torch.linalg.svd(means - center, full_matrices=False).Vh[:2].T  # (K, 2)
    return (source - center) @ plane, (target - center) @ plane
