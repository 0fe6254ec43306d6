"""Batch Group Normalization and its relatives for PyTorch.

>>> import bgn
>>> norm = bgn.BatchGroupNorm2d(64, num_groups=bgn.paper_groups(batch_size=2))
"""

from bgn import functional
from bgn._info import info
from bgn._version import __version__
from bgn.factory import norm_layer
from bgn.groups import paper_groups
from bgn.layers import (
    BatchGroupNorm1d,
    BatchGroupNorm2d,
    BatchGroupNorm3d,
    GeneralBatchGroupNorm2d,
    GroupNorm,
    PositionalNorm2d,
)

__all__ = [
    "BatchGroupNorm1d",
    "BatchGroupNorm2d",
    "BatchGroupNorm3d",
    "GeneralBatchGroupNorm2d",
    "GroupNorm",
    "PositionalNorm2d",
    "__version__",
    "functional",
    "info",
    "norm_layer",
    "paper_groups",
]
