"""Batch Group Normalization and its relatives for PyTorch.

>>> import bgn
>>> norm = bgn.BatchGroupNorm2d(64, num_groups=bgn.paper_groups(batch_size=2))
"""

from bgn import functional
from bgn._info import info
from bgn._version import __version__
from bgn.activated import BatchGroupNormAct2d
from bgn.factory import norm_layer
from bgn.groups import auto_groups, nearest_groups, paper_groups
from bgn.layers import (
    BatchGroupNorm1d,
    BatchGroupNorm2d,
    BatchGroupNorm3d,
    GeneralBatchGroupNorm2d,
    GroupNorm,
    PositionalNorm2d,
)
from bgn.renorm import Renorm
from bgn.surgery.convert import convert, regroup
from bgn.surgery.describe import describe
from bgn.surgery.domains import DomainNorm, convert_domains, domain, keep_domain
from bgn.surgery.fold import fold
from bgn.surgery.freeze import freeze, unfreeze
from bgn.surgery.recalibrate import recalibrate
from bgn.surgery.recommend import Recommendation, recommend
from bgn.surgery.standardize import standardize
from bgn.surgery.sync import convert_sync
from bgn.sync import SyncBatchGroupNorm, SyncGeneralBatchGroupNorm2d

__all__ = [
    "BatchGroupNorm1d",
    "BatchGroupNorm2d",
    "BatchGroupNorm3d",
    "BatchGroupNormAct2d",
    "DomainNorm",
    "GeneralBatchGroupNorm2d",
    "GroupNorm",
    "PositionalNorm2d",
    "Recommendation",
    "Renorm",
    "SyncBatchGroupNorm",
    "SyncGeneralBatchGroupNorm2d",
    "__version__",
    "auto_groups",
    "convert",
    "convert_domains",
    "convert_sync",
    "describe",
    "domain",
    "fold",
    "freeze",
    "functional",
    "info",
    "keep_domain",
    "nearest_groups",
    "norm_layer",
    "paper_groups",
    "recalibrate",
    "recommend",
    "regroup",
    "standardize",
    "unfreeze",
]
