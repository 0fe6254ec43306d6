"""What the abbreviations in the names of rows stand for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bgn_lab.report.styles import base

NORMALIZERS = {
    "BN": "batch normalization: a mean and a variance for each channel, over the whole batch",
    "IN": "instance normalization: for each channel of each image",
    "LN": "layer normalization: for each image",
    "GN": "group normalization: for each group of channels of each image",
    "PN": "positional normalization: for each position of each image, across channels",
    "GBGN": "general batch group normalization: for each group of channels, over the whole batch",
    "BGN": "batch group normalization: for each of G slices of C, H, W, over the whole batch",
}
PARTNERS = {
    "WS": "standardized weights of the convolutions before the normalizer",
    "renorm": "batch renormalization: batches are corrected towards the running statistics",
    "centered": "a mean for each channel, a variance for each group",
}
GROUPS = {
    r"paper's G": "number of groups as in the paper: on ImageNet 1 at 2 images, up to 512 at 128",
    r"auto": "as many groups as leave 16 values per statistic; 16 at most at 2 to 7 images, 1 at 1",
    r"G = \d+": "number of groups, the same in every layer",
    r"\d+\+ values": "as many groups of whole channels as leave so many values per statistic",
}


def key(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Terms that occur in names of rows, and what they mean.

    >>> [term for term, _ in key(["BN", "BGN + WS, G = 8", "BGN, G = 16"])]
    ['BN', 'BGN', '+ WS', 'G = 8, 16']
    >>> [term for term, _ in key(["package.module:Norm"])]
    []
    """
    names = {base(label) for label in labels}
    found = [(name, meaning) for name, meaning in NORMALIZERS.items() if name in names]
    heads = [label.partition(",")[0].split(" + ")[1:] for label in labels]
    used = {partner for own in heads for partner in own}
    found += [(f"+ {name}", meaning) for name, meaning in PARTNERS.items() if name in used]
    rest = [part for label in labels for part in label.split(", ")[1:]]
    for pattern, meaning in GROUPS.items():
        terms = list(dict.fromkeys(part for part in rest if re.fullmatch(pattern, part)))
        if terms:
            first, *others = terms
            numbers = [re.sub(r"\D", "", term) for term in others]
            found.append((", ".join((first, *numbers)), meaning))
    return found
