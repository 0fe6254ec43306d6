"""The normalizers as modules, each a drop-in for its relative in torch.nn.

The layers with running statistics derive from torch's ``_NormBase``, as BatchNorm and InstanceNorm
do, so keys, state_dict version, ``reset_parameters`` and the constructor are theirs. They are
deliberately no ``_BatchNorm``: code that asks for that type counts on one running statistic per
channel (``SyncBatchNorm.convert_sync_batchnorm`` would build a layer with buffers of the wrong
size), and here there is one per group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bgn import checks, kernels
from bgn import functional as F
from bgn._fx import leaf as fx_leaf
from bgn.activation import After
from bgn.groups import AUTO, CHANNELS, auto_groups, warn_of_one_image
from bgn.loading import Explained
from bgn.partition import (
    Partition,
    block_sizes,
    centered,
    channel_groups,
    num_channel_groups,
    slices,
)
from bgn.recomputed import recomputing
from bgn.renorm import Renorm, wanted
from bgn.renormalized import Renormalized
from bgn.running import Running

__all__ = [
    "BatchGroupNorm1d",
    "BatchGroupNorm2d",
    "BatchGroupNorm3d",
    "GeneralBatchGroupNorm2d",
    "GroupNorm",
    "PositionalNorm2d",
]


GROUP, CHANNEL = CENTERS = "group", "channel"  # what has a mean of its own


def _not_scriptable(layer: nn.Module) -> Exception:
    return RuntimeError(
        f"torch.jit.script cannot compile {type(layer).__name__}; use torch.jit.trace or"
        " torch.export, or script what bgn.fold(model) or bgn.convert(model, 'bn') gives"
    )


def _check_center(center: str, num_features: int, num_groups: int) -> None:
    if center == CHANNEL and num_features % num_groups:
        raise ValueError(
            f"num_groups={num_groups} with center={CHANNEL!r} must divide"
            f" num_features={num_features}: expected groups of whole channels"
        )


class _BatchWideNorm(Explained, Renormalized, _NormBase):
    """What BGN and GBGN share: statistics over the batch, and running averages for test time."""

    accepted_dims: ClassVar[tuple[int, ...]]
    cut: Callable[..., Partition] = staticmethod(slices)
    num_groups: int
    center = GROUP  # what has a mean of its own: each group, or each channel
    batch_blocks = 1
    first_block = False  # whether running statistics are those of the first block alone
    auto: bool  # whether the first training batch decides, or has decided, the number of groups
    undecided: bool  # whether it is still to come

    def __init__(
        self,
        num_features: int,
        num_groups: int | str | None = None,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        batch_blocks: int = 1,
        renorm: Renorm | bool | None = None,
        center: str = "group",
    ) -> None:
        num_features = checks.positive_int("num_features", num_features)
        batch_blocks = checks.positive_int("batch_blocks", batch_blocks)
        checks.one_of("center", center, CENTERS)
        auto = num_groups == AUTO and self.cut is slices
        per_channel = auto or (num_groups == CHANNELS and self.cut is slices)
        num_groups = num_features if per_channel else self._checked_groups(num_groups)
        _check_center(center, num_features, num_groups)
        checks.eps(eps)
        checks.momentum(momentum)
        renorm = wanted(renorm)
        if renorm is not None and not track_running_stats:
            raise ValueError(f"renorm={renorm} needs track_running_stats=True, got False")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        if affine and not bias:
            self.register_parameter("bias", None)
        self.num_groups, self.auto, self.undecided = num_groups, auto, auto
        self.batch_blocks, self.center, self.renorm = batch_blocks, center, None
        self.cut = centered if center == CHANNEL else type(self).cut
        if track_running_stats:
            self.running_mean = torch.zeros(self.num_means, device=device, dtype=dtype)
            self.running_var = torch.ones(self.num_statistics, device=device, dtype=dtype)
        if renorm is not None:
            self.set_renorm(renorm)

    def _checked_groups(self, num_groups: Any) -> int:
        if isinstance(num_groups, str) or num_groups is None:
            accepted = "an int of at least 1"
            if self.cut is slices:
                accepted += f", {CHANNELS!r} or {AUTO!r} (or bgn.paper_groups(batch_size=...))"
            raise (TypeError if num_groups is None else ValueError)(
                f"{type(self).__name__}: num_groups={num_groups!r}; expected {accepted}"
            )
        return checks.positive_int("num_groups", num_groups)

    def reset_parameters(self) -> None:
        """Statistics as before the first batch, weight 1, bias 0."""
        self.reset_running_stats()
        _reset_affine(self)

    def __prepare_scriptable__(self) -> Any:
        raise _not_scriptable(self)

    def reset_running_stats(self) -> None:
        """Statistics as before the first batch."""
        super().reset_running_stats()
        steps = self._buffers.get("renorm_steps")
        if steps is not None:
            steps.zero_()

    @property
    def num_means(self) -> int:
        """Entries of running_mean."""
        return self.num_features if self.center == CHANNEL else self.num_statistics

    @property
    def num_statistics(self) -> int:
        """Entries of running_var, and of running_mean but for ``center="channel"``.

        One per group; one per channel with ``num_groups="auto"``, so that buffers do not change
        their shape when the number of groups is decided.
        """
        return self.num_features if self.auto else self.num_groups

    def resolve_groups(self, num_groups: int) -> None:
        """Set the number of groups; running statistics start anew where their number changes."""
        num_groups = checks.positive_int("num_groups", num_groups)
        _check_center(self.center, self.num_features, num_groups)
        self.num_groups, self.undecided = num_groups, False
        mean, var = self.running_mean, self.running_var
        if mean is not None and var is not None and len(var) != self.num_statistics:
            self.running_mean = mean.new_zeros(self.num_means)
            self.running_var = var.new_ones(self.num_statistics)
            for count in self.num_batches_tracked, self._buffers.get("renorm_steps"):
                if count is not None:
                    count.zero_()

    @fx_leaf
    def forward(self, input: Tensor) -> Tensor:
        return self._run(input, None)

    def _run(self, input: Tensor, after: After | None) -> Tensor:
        if self.renorm is not None and self._must_break_graph(input):
            disable: Any = torch.compiler.disable
            output: Tensor = disable(self._normalize)(input, after)
            return output
        return self._normalize(input, after)

    def _normalize(self, input: Tensor, after: After | None = None) -> Tensor:
        shape = kernels.sizes(input)
        checks.dims(shape, self.accepted_dims, type(self).__name__)
        checks.channels(shape, "num_features", self.num_features)
        weight, bias, mean, var, counter = self._tensors()
        if self.training or mean is None or var is None:
            running = self._running(mean, var, counter)
            G = self._first_groups(input, shape) if self.undecided else self.num_groups
            blocks, first = self.batch_blocks, self.first_block
            reference = None
            if self.renorm is not None and self.track_running_stats:
                reference = self._reference(mean, var, input, G)
            options = weight, bias, self.eps, running, first, reference, after
            output = F.in_blocks(input, self.cut, G, blocks, *options)
            if self.renorm is not None:
                self._count_step(running)
            if self.undecided and input.numel():  # now that the batch was accepted
                self.num_groups, self.undecided = G, False
            return output
        plan = kernels.plan(self.cut, input, self.num_features if self.auto else self.num_groups)
        given = mean, var
        return F.batch_wide(input, plan, weight, bias, self.eps, None, given, None, after)

    def _running(self, mean: Any, var: Any, counter: Tensor | None) -> Running | None:
        """The running statistics that this batch moves, if any; counts the batch if there are none.

        A recomputed segment moves nothing: its batch was counted before.
        """
        if (mean is None) != (var is None):
            missing = "running_mean" if mean is None else "running_var"
            raise ValueError(
                f"{missing}=None while the other is a tensor; expected both or neither"
            )
        if not (self.training and self.track_running_stats) or recomputing():
            return None
        if mean is None:
            if counter is not None:
                counter.add_(1)
            return None
        sizes = self.num_means, self.num_statistics
        for name, value, size in zip(
            ("running_mean", "running_var"), (mean, var), sizes, strict=True
        ):
            per = "channel" if self.auto or size != self.num_groups else "group"
            checks.vector(name, value, size, per)
        return Running(mean, var, self.momentum, counter)

    def _tensors(self) -> Any:
        """Weight, bias, running statistics and counter.

        From where modules keep them: a module's own lookup would cost as much as all checks.
        """
        parameters, buffers, own = self._parameters, self._buffers, self.__dict__
        try:
            if "weight" in own or "bias" in own or "running_mean" in own or "running_var" in own:
                raise KeyError  # plain attributes come first
            return (
                parameters["weight"],
                parameters["bias"],
                buffers["running_mean"],
                buffers["running_var"],
                buffers["num_batches_tracked"],
            )
        except KeyError:  # parametrized tensors are elsewhere
            names = "weight", "bias", "running_mean", "running_var", "num_batches_tracked"
            return tuple(getattr(self, name) for name in names)

    def _first_groups(self, input: Tensor, shape: Any) -> int:
        """The number of groups that the first training batch decides on."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        several = distributed and torch.distributed.get_world_size() > 1
        if several or getattr(self, "_is_replica", False) or torch.compiler.is_compiling():
            raise RuntimeError(
                "num_groups='auto' is decided by the first training batch, in one process and not"
                " compiled; otherwise decide before: bgn.convert(model, num_groups='auto',"
                " batch_size=..., sample=...)"
            )
        if input.numel() == 0:
            return self.num_features
        n = block_sizes(shape[0], self.batch_blocks)[0]
        warn_of_one_image(n)
        return auto_groups(self.num_features, n, input[0, 0].numel())

    def extra_repr(self) -> str:
        groups = repr(AUTO) if self.undecided else self.num_groups
        bias = ", bias=False" if self.affine and self.bias is None else ""
        blocks = f", batch_blocks={self.batch_blocks}" if self.batch_blocks != 1 else ""
        blocks += f", center={self.center!r}" if self.center != GROUP else ""
        blocks += f", renorm={self.renorm}" if self.renorm is not None else ""
        return (
            f"{self.num_features}, num_groups={groups}, eps={self.eps}, momentum={self.momentum},"
            f" affine={self.affine}{bias}, track_running_stats={self.track_running_stats}{blocks}"
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        saved = state_dict.get(prefix + "running_var")
        self._load_steps(state_dict, prefix)
        errors: list[str] = args[-1]
        before = len(errors)
        groups = None
        if self.auto and saved is not None and self.running_mean is not None:
            groups = self._spread_over_channels(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if groups is not None and len(errors) == before:
            self.num_groups, self.undecided = groups, False

    def _spread_over_channels(self, state_dict: dict[str, Any], prefix: str) -> int | None:
        """Give a checkpoint with G statistics one per channel; G, or None if that cannot be."""
        C, keys = self.num_features, [prefix + name for name in ("running_mean", "running_var")]
        if self.center == CHANNEL:  # there is a mean per channel already
            keys = keys[1:]
        sizes = {state_dict[key].shape for key in keys if key in state_dict}
        if len(sizes) != 1 or any(len(size) != 1 or not size[0] for size in sizes):
            return None
        G = int(next(iter(sizes))[0])
        if G == C or C % G:
            return None
        for key in keys:
            if key in state_dict:
                state_dict[key] = state_dict[key].repeat_interleave(C // G)
        return G


class BatchGroupNorm2d(_BatchWideNorm):
    """Batch Group Normalization over (N, C, H, W).

        y = (x - mu_g) / sqrt(var_g + eps) * weight[c] + bias[c]

    A sample's C*H*W features, in memory order, are cut into ``num_groups`` slices; slice g has one
    mean and one biased variance over the whole batch. With ``num_groups == num_features`` this is
    :class:`torch.nn.BatchNorm2d`, state_dict included; fewer groups merge neighboring channels,
    more groups cut channels into horizontal strips. Everything else is as in BatchNorm2d: momentum
    0.1 or None for a cumulative average, the unbiased variance in the running average,
    ``track_running_stats=False`` for batch statistics at test time too, ``bias=False``.

    ``num_groups="channels"`` is ``num_features``. ``"auto"`` is decided by the first training batch
    that the layer sees, from its N, H and W (:func:`bgn.auto_groups`). Such a layer keeps one
    running statistic per channel, equal within a group, so its state_dict has the shapes of a
    BatchNorm2d.

    ``batch_blocks`` cuts a training batch into so many blocks of consecutive samples with
    statistics of their own: ceil(N / batch_blocks) samples each, fewer in the last block where that
    leaves a rest. Running statistics are averages over the blocks, weighted by their samples. With
    ``num_groups == num_features`` this is batch normalization of ghost batches.

    ``renorm``, a :class:`bgn.Renorm` or True, corrects a training batch towards the running
    statistics (batch renormalization), so that training and eval mode agree more and more.

    ``center="channel"`` gives every channel its own mean; only the variance is the group's, of
    whole channels. running_mean has an entry per channel then.

    A forward inside a backward pass (gradient checkpointing) normalizes but leaves the running
    statistics alone.

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

    Statistics over blocks of N / ``batch_blocks`` samples, as in :class:`BatchGroupNorm2d`, and
    groups of at least ``max(C // num_groups, 1)`` channels: C groups where num_groups exceeds C
    (then it is BatchNorm in blocks). Running statistics are kept per group and averaged over the
    blocks. One block, the default, is the paper's setting.

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
        *,
        bias: bool = True,
        renorm: Renorm | bool | None = None,
    ) -> None:
        super().__init__(
            num_features,
            num_groups,
            eps,
            momentum,
            affine,
            track_running_stats,
            device,
            dtype,
            bias=bias,
            batch_blocks=batch_blocks,
            renorm=renorm,
        )

    @property
    def num_statistics(self) -> int:
        return num_channel_groups(self.num_features, self.num_groups)

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return shown if "batch_blocks" in shown else f"{shown}, batch_blocks=1"


class GroupNorm(Explained, nn.GroupNorm):
    """:class:`torch.nn.GroupNorm`, and the *merged view* where num_groups does not divide C.

    The merged view cuts a sample's C*H*W features into ``num_groups`` slices, as BGN does, with
    statistics per sample. ``num_groups=1`` is layer normalization over (C, H, W),
    ``num_groups=num_channels`` instance normalization; where a statistic has a single element
    (instance normalization of 1x1 maps) the output is the bias alone, with a warning.

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
        *,
        bias: bool = True,
    ) -> None:
        num_groups = checks.positive_int("num_groups", num_groups)
        num_channels = checks.positive_int("num_channels", num_channels)
        checks.eps(eps)
        super().__init__(1, num_channels, eps, affine, device, dtype)  # 1 divides everything
        self.num_groups = num_groups
        if affine and not bias:
            self.register_parameter("bias", None)

    def __prepare_scriptable__(self) -> Any:
        raise _not_scriptable(self)

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        _reset_affine(self)

    @fx_leaf
    def forward(self, input: Tensor) -> Tensor:
        checks.feature_map(input)
        checks.channels(kernels.sizes(input), "num_channels", self.num_channels)
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class PositionalNorm2d(Explained):
    """Positional Normalization over (N, C, H, W) (Li et al. 2019), without moment re-injection.

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
        *,
        bias: bool = True,
    ) -> None:
        num_features = checks.positive_int("num_features", num_features)
        checks.eps(eps)
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.affine = affine
        for name, has in ("weight", affine), ("bias", affine and bias):
            value = torch.empty(num_features, device=device, dtype=dtype) if has else None
            self.register_parameter(name, None if value is None else nn.Parameter(value))
        self.reset_parameters()

    def __prepare_scriptable__(self) -> Any:
        raise _not_scriptable(self)

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        _reset_affine(self)

    @fx_leaf
    def forward(self, input: Tensor) -> Tensor:
        shape = kernels.sizes(input)
        checks.dims(shape, (4,), type(self).__name__)
        checks.feature_map(input)
        checks.channels(shape, "num_features", self.num_features)
        return F.positional_norm(input, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        bias = ", bias=False" if self.affine and self.bias is None else ""
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}{bias}"


def _reset_affine(layer: Any) -> None:
    if layer.weight is not None:
        nn.init.ones_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
