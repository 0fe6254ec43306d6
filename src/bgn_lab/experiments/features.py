"""A picture of the features of two domains in two dimensions, before and after adaptation."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bgn_lab import files

Pair = tuple[Tensor, Tensor]
SHOWN, CLASSES = 600, 10  # points of each domain, and colours that can be told apart


def picture(found: Mapping[str, Pair], labels: Pair, names: tuple[str, str], title: str, path: Path) -> None:
    """Draw (M, K) and (M', K) features of both domains for each of some networks, coloured by class; of many classes the ten that
    the source has most images of."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    common = labels[0].bincount().argsort(descending=True, stable=True)[:CLASSES]
    colours = {int(k): colormaps["tab10"](i)[:3] for i, k in enumerate(common.sort().values)}
    inside = [torch.isin(y, common).nonzero().flatten() for y in labels]
    shown = [own[torch.linspace(0, len(own) - 1, min(SHOWN, len(own))).long()] for own in inside]

    figure = Figure(figsize=(5.2 * len(found), 5.4), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (when, both) in zip(panels, found.items(), strict=True):
        flat = project(both, labels, common)
        for points, y, some, marker, name in zip(flat, labels, shown, ("o", "x"), names, strict=True):
            own = [colours[k] for k in y[some].tolist()]
            style: dict[str, Any] = {"edgecolors": own, "facecolors": "none"} if marker == "o" else {"c": own}
            axes.scatter(*points[some].T.numpy(), s=16, marker=marker, linewidths=0.9, label=name, **style)
        axes.set(title=when, xticks=[], yticks=[])
    panels[0].legend(loc="best", fontsize=8)
    few = f", {len(common)} of them" if len(common) < int(labels[0].max()) + 1 else ""
    figure.suptitle(f"{title}\none colour per class{few}; the target's labels were not used in training", fontsize=10)
    content = BytesIO()
    figure.savefig(content, format="png", dpi=130)
    files.write(path, content.getvalue())


def project(both: Pair, labels: Pair, classes: Tensor) -> Pair:
    """Onto the plane in which classes of the source lie furthest apart: the first two components of their mean directions."""
    source, target = (F.normalize(features.double(), dim=1) for features in both)
    means = torch.stack([source[labels[0] == k].mean(0) for k in classes])
    centre = means.mean(0)
    plane = torch.linalg.svd(means - centre, full_matrices=False).Vh[:2].T  # (K, 2)
    return (source - centre) @ plane, (target - centre) @ plane
