"""The normalisers as modules, each a drop-in for its relative in torch.nn.

The layers with running statistics derive from torch's ``_NormBase``, as BatchNorm and InstanceNorm do, so keys, state_dict
version, ``reset_parameters`` and the constructor are theirs. They are deliberately no ``_BatchNorm``: code that asks for
that type counts on one running statistic per channel (``SyncBatchNorm.convert_sync_batchnorm`` would build a layer with
buffers of the wrong size), and here there is one per group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bgn import checks
from bgn import functional as F
from bgn._fx import leaf as fx_leaf
from bgn.groups import AUTO, auto_groups, warn_of_one_image
from bgn.partition import Partition, channel_groups, num_channel_groups, slices
from bgn.running import Running

__all__ = [
    "BatchGroupNorm1d",
    "BatchGroupNorm2d",
    "BatchGroupNorm3d",
    "GeneralBatchGroupNorm2d",
    "GroupNorm",
    "PositionalNorm2d",
]


def _recomputing() -> bool:
    """Whether this forward runs inside a backward pass: then it is a checkpointed segment's second run."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class _BatchWideNorm(_NormBase):
    """What BGN and GBGN share: statistics over the batch, and running averages of them for test time."""

    accepted_dims: ClassVar[tuple[int, ...]]
    cut: ClassVar[Callable[..., Partition]] = staticmethod(slices)
    num_groups: int
    batch_blocks = 1
    unsettled: bool  # whether the first batch is still to decide on the number of groups

    def __init__(
        self,
        num_features: int,
        num_groups: int | str,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        checks.positive_int("num_features", num_features)
        unsettled = num_groups == AUTO and self.cut is slices
        if unsettled:
            num_groups = num_features
        checks.positive_int("num_groups", num_groups)
        checks.eps(eps)
        checks.momentum(momentum)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.num_groups, self.unsettled = int(num_groups), unsettled
        if track_running_stats:
            self.running_mean = torch.zeros(self.num_statistics, device=device, dtype=dtype)
            self.running_var = torch.ones(self.num_statistics, device=device, dtype=dtype)

    def settle(self, num_groups: int) -> None:
        """Decide on the number of groups of a layer that was made with ``num_groups="auto"``; statistics begin anew."""
        checks.positive_int("num_groups", num_groups)
        self.unsettled, self.num_groups = False, num_groups
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean = self.running_mean.new_zeros(num_groups)
            self.running_var = self.running_var.new_ones(num_groups)

    @property
    def num_statistics(self) -> int:
        """Entries of running_mean and running_var."""
        return self.num_groups

    @fx_leaf
    def forward(self, input: Tensor) -> Tensor:
        if self.unsettled and (self.training or self.running_mean is None):
            self._settle_by(input)
        # looked up where modules keep them: a module's own lookup costs as much as all checks together
        parameters, buffers, training = self._parameters, self._buffers, self.training
        mean, var, counter = (
            buffers["running_mean"],
            buffers["running_var"],
            buffers["num_batches_tracked"],
        )
        whole = "weight" in parameters and "bias" in parameters  # parametrised ones are elsewhere
        weight, bias = (
            (parameters["weight"], parameters["bias"]) if whole else (self.weight, self.bias)
        )
        running, given = None, None
        if mean is not None and var is not None:
            if not training:
                given = mean, var
            elif self.track_running_stats and counter is not None and not _recomputing():
                running = Running(mean, var, self.momentum, counter)
        key = None
        if type(input) is Tensor and not torch.compiler.is_compiling():
            key = (
                type(self),
                input.shape,
                input.dtype,
                given is None,
                self.num_features,
                self.num_groups,
                self.batch_blocks,
            )
            output = F.backend.quick(key, input, weight, bias, self.eps, running, given)
            if output is not None:
                return output
        checks.dims(input, self.accepted_dims, type(self).__name__)
        checks.channels(input, "num_features", self.num_features)
        blocks = self.batch_blocks if given is None else 1
        part = F.partition(self.cut, input, self.num_groups, blocks)
        return F.batch_wide(input, part, weight, bias, self.eps, running, given, key)

    def _settle_by(self, input: Tensor) -> None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        several = getattr(self, "_is_replica", False) or (
            distributed and torch.distributed.get_world_size() > 1
        )
        if several or torch.compiler.is_compiling():
            raise RuntimeError(
                "num_groups='auto' is decided by the first training batch, in one process and not compiled; otherwise decide"
                " before: bgn.convert(model, num_groups='auto', batch_size=..., sample=...)"
            )
        checks.dims(input, self.accepted_dims, type(self).__name__)
        checks.channels(input, "num_features", self.num_features)
        if input.numel():
            warn_of_one_image(len(input))
            self.settle(auto_groups(self.num_features, len(input), input[0, 0].numel()))

    def extra_repr(self) -> str:
        groups = repr(AUTO) if self.unsettled else self.num_groups
        return (
            f"{self.num_features}, num_groups={groups}, eps={self.eps}, momentum={self.momentum},"
            f" affine={self.affine}, track_running_stats={self.track_running_stats}"
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        saved, batches = (
            state_dict.get(prefix + name) for name in ("running_mean", "num_batches_tracked")
        )
        if self.unsettled and saved is not None and saved.dim() == 1 and saved.numel():
            undecided = (
                saved.numel() == self.num_features and batches is not None and int(batches) == 0
            )
            if not undecided:
                self.settle(saved.numel())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if (
            saved is not None
            and self.running_mean is not None
            and saved.shape != self.running_mean.shape
        ):
            error_msgs: list[str] = args[-1]
            error_msgs.append(
                f"{prefix}num_groups={self.num_groups} has {self.num_statistics} running statistics, the checkpoint has"
                f" {saved.numel()}: it was trained with other groups (a BatchNorm has one per channel); load it into a"
                f" layer with that many groups"
            )


class BatchGroupNorm2d(_BatchWideNorm):
    """Batch Group Normalization over (N, C, H, W).

        y = (x - mu_g) / sqrt(var_g + eps) * weight[c] + bias[c]

    A sample's C*H*W features, in memory order, are cut into ``num_groups`` slices; slice g has one mean and one biased
    variance over the whole batch. With ``num_groups == num_features`` this is :class:`torch.nn.BatchNorm2d`, state_dict
    included; fewer groups merge neighbouring channels, more groups cut channels into horizontal strips. Everything else
    is as in BatchNorm2d: momentum 0.1 or None for a cumulative average, the unbiased variance in the running average,
    ``track_running_stats=False`` for batch statistics at test time too.

    ``num_groups="auto"`` is decided by the first training batch, from its N, H and W (:func:`bgn.auto_groups`), or by the
    state_dict that is loaded; until then the layer is as good as BatchNorm.

    A forward inside a backward pass (gradient checkpointing) normalises but leaves the running statistics alone.

    >>> norm = BatchGroupNorm2d(64, num_groups=1)
    >>> norm(torch.randn(2, 64, 7, 7)).shape
    torch.Size([2, 64, 7, 7])
    """

    accepted_dims = (4,)


class BatchGroupNorm1d(_BatchWideNorm):
    """Batch Group Normalization over (N, C) or (N, C, L); see :class:`BatchGroupNorm2d`.

    >>> BatchGroupNorm1d(64, num_groups=8)(torch.randn(2, 64)).shape
    torch.Size([2, 64])
    """

    accepted_dims = (2, 3)


class BatchGroupNorm3d(_BatchWideNorm):
    """Batch Group Normalization over (N, C, D, H, W); see :class:`BatchGroupNorm2d`.

    >>> BatchGroupNorm3d(16, num_groups=2)(torch.randn(1, 16, 4, 8, 8)).shape
    torch.Size([1, 16, 4, 8, 8])
    """

    accepted_dims = (5,)


class GeneralBatchGroupNorm2d(_BatchWideNorm):
    """General Batch Group Normalization over (N, C, H, W) (Summers and Dinneen 2020).

    Statistics over blocks of N / ``batch_blocks`` samples and groups of at least ``max(C // num_groups, 1)`` channels: C
    groups where num_groups exceeds C (then it is BatchNorm in blocks). Running statistics are kept per group and
    averaged over the blocks. One block, the default, is the paper's setting.

    >>> norm = GeneralBatchGroupNorm2d(64, num_groups=32, batch_blocks=2)
    >>> norm(torch.randn(4, 64, 7, 7)).shape
    torch.Size([4, 64, 7, 7])
    """

    accepted_dims = (4,)
    cut = staticmethod(channel_groups)

    def __init__(
        self,
        num_features: int,
        num_groups: int = 32,
        batch_blocks: int = 1,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        checks.positive_int("batch_blocks", batch_blocks)
        super().__init__(
            num_features, num_groups, eps, momentum, affine, track_running_stats, device, dtype
        )
        self.batch_blocks = batch_blocks

    @property
    def num_statistics(self) -> int:
        return num_channel_groups(self.num_features, self.num_groups)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, batch_blocks={self.batch_blocks}"


class GroupNorm(nn.GroupNorm):
    """:class:`torch.nn.GroupNorm`, and the *merged view* where num_groups does not divide num_channels.

    The merged view cuts a sample's C*H*W features into ``num_groups`` slices, as BGN does, with statistics per sample.
    ``num_groups=1`` is layer normalisation over (C, H, W), ``num_groups=num_channels`` instance normalisation; where a
    statistic has a single element (instance normalisation of 1x1 maps) the output is the bias alone, with a warning.

    >>> GroupNorm(32, 36)(torch.randn(2, 36, 8, 8)).shape
    torch.Size([2, 36, 8, 8])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        checks.positive_int("num_groups", num_groups)
        checks.positive_int("num_channels", num_channels)
        checks.eps(eps)
        super().__init__(1, num_channels, eps, affine, device, dtype)  # 1 divides everything
        self.num_groups = num_groups

    @fx_leaf
    def forward(self, input: Tensor) -> Tensor:
        key, weight, bias = None, self.weight, self.bias
        if type(input) is Tensor and not torch.compiler.is_compiling():
            key = (GroupNorm, input.shape, input.dtype, self.num_channels, self.num_groups)
            output = F.backend.quick(key, input, weight, bias, self.eps, None, None)
            if output is not None:
                return output
        checks.feature_map(input)
        checks.channels(input, "num_channels", self.num_channels)
        one_element = math.prod(input.shape[1:]) == self.num_groups
        if self.num_channels % self.num_groups == 0 and input.numel() and not one_element:
            if not F.backend.serves(input, weight, bias):
                return super().forward(input)
            F.backend.remember(key, input, F.partition(slices, input, self.num_groups, None))
        return F.group_norm(input, self.num_groups, weight, bias, self.eps)


class PositionalNorm2d(nn.Module):
    """Positional Normalization over (N, C, H, W) (Li et al. 2019), without the re-injection of moments.

        y = (x - mu_nhw) / sqrt(var_nhw + eps) * weight[c] + bias[c]

    One mean and one biased variance per sample and position, across the channels.

    >>> PositionalNorm2d(64)(torch.randn(2, 64, 7, 7)).shape
    torch.Size([2, 64, 7, 7])
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        checks.positive_int("num_features", num_features)
        checks.eps(eps)
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.affine = affine
        weight = (
            nn.Parameter(torch.empty(num_features, device=device, dtype=dtype)) if affine else None
        )
        bias = (
            nn.Parameter(torch.empty(num_features, device=device, dtype=dtype)) if affine else None
        )
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    @fx_leaf
    def forward(self, input: Tensor) -> Tensor:
        checks.dims(input, (4,), type(self).__name__)
        checks.feature_map(input)
        checks.channels(input, "num_features", self.num_features)
        return F.positional_norm(input, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}"
