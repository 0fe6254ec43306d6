"""The layers that are compared, made alike: nn.BatchNorm2d, ours, and the definition of ours."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

import bgn
from tests.differential.table import Variant

C = 8


class Definition(_NormBase):
    """BGN in plain torch operations: group g has features floor(g*D/G) up to floor((g+1)*D/G)."""

    def __init__(self, num_features: int, num_groups: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(num_features, *args, **kwargs)
        self.num_groups = num_groups
        if self.running_mean is not None:
            self.running_mean = self.running_mean.new_zeros(num_groups)
            self.running_var = self.running_mean.new_ones(num_groups)

    def forward(self, input: Tensor) -> Tensor:
        x = input
        N, channels, H, W = x.shape
        D, G = channels * H * W, self.num_groups
        if channels != self.num_features:
            raise ValueError(f"{channels} channels instead of {self.num_features}")
        starts = [g * D // G for g in range(G + 1)]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.training or self.running_mean is None:
            flat = wide.reshape(N, D)
            parts = [flat[:, a:b] for a, b in itertools.pairwise(starts)]
            mean = torch.stack([part.mean() for part in parts])
            var = torch.stack([part.var(correction=0) for part in parts])
            if self.training and self.track_running_stats:
                self._move([part.numel() for part in parts], mean.detach(), var.detach())
        else:
            mean, var = self.running_mean.to(wide.dtype), self.running_var.to(wide.dtype)
        sizes = [b - a for a, b in itertools.pairwise(starts)]

        def spread(statistic: Tensor) -> Tensor:  # (G,) -> (C, H, W)
            per_feature = [statistic[g].expand(size) for g, size in enumerate(sizes)]
            return torch.cat(per_feature).view(channels, H, W)

        y = (wide - spread(mean)) / torch.sqrt(spread(var) + self.eps)
        if self.weight is not None:
            y = y * self.weight.view(-1, 1, 1)
        if self.bias is not None:
            y = y + self.bias.view(-1, 1, 1)
        return y.to(x.dtype)

    @torch.no_grad()
    def _move(self, counts: list[int], mean: Tensor, var: Tensor) -> None:
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        if self.running_mean is None:
            return
        factor = var.new_tensor([n / (n - 1) if n > 1 else float("nan") for n in counts])
        for running, batch in (self.running_mean, mean), (self.running_var, var * factor):
            running.copy_(running * (1 - momentum) + batch * momentum)


def relu(z: Tensor) -> Tensor:
    """As torch's, with its derivative at 0 and NaN, but keeping no more than a mask."""
    return torch.where(z <= 0, torch.zeros_like(z), z)


class BatchNormReLU(nn.BatchNorm2d):
    """nn.BatchNorm2d and a ReLU that does not need its output again."""

    def __init__(self, *args: Any, device: Any = None, dtype: Any = None, **options: Any) -> None:
        super().__init__(*args, device=device, dtype=dtype, **options)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:
        return relu(super().forward(input))


class DefinitionReLU(Definition):
    """The definition and a ReLU after it."""

    def forward(self, input: Tensor) -> Tensor:
        return relu(super().forward(input))


class Make:
    """Makes layers and inputs of one variant; the same ones for each kind of layer."""

    def __init__(self, kind: str, variant: Variant) -> None:
        self.kind, self.groups, self.training = kind, variant.groups, variant.training
        self.dtype = getattr(torch, variant.dtype)
        self.last = variant.layout == "channels_last"
        self.relu = variant.relu

    def new(self, num_features: int = C, **options: Any) -> nn.Module:
        """A layer as its class makes it."""
        groups = self.groups or num_features
        if self.kind == "torch":
            return (BatchNormReLU if self.relu else nn.BatchNorm2d)(num_features, **options)
        if self.kind == "definition":
            meaning = DefinitionReLU if self.relu else Definition
            return meaning(num_features, groups, **options)
        own = bgn.BatchGroupNormAct2d if self.relu else bgn.BatchGroupNorm2d
        return own(num_features, groups, **options)

    def __call__(self, num_features: int = C, **options: Any) -> nn.Module:
        """A layer with weights and statistics as after some training, in the variant's mode."""
        layer = self.new(num_features, **{"dtype": self.dtype, **options})
        draw = torch.Generator().manual_seed(num_features)
        with torch.no_grad():
            for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
                if tensor.dtype is torch.int64:
                    tensor.fill_(3)
                elif not tensor.is_meta:
                    values = torch.rand(tensor.shape, generator=draw, dtype=torch.float64)
                    positive = name in ("weight", "running_var")
                    tensor.copy_(values + 0.5 if positive else values - 0.5)
        return layer.train(self.training)

    def x(
        self,
        N: int = 4,
        num_features: int = C,
        H: int = 6,
        W: int = 5,
        *,
        seed: int = 0,
        grad: bool = True,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """An input in the variant's dtype and layout."""
        draw = torch.Generator().manual_seed(100 + seed)
        x = torch.randn(N, num_features, H, W, generator=draw, dtype=torch.float64) * 2 + 0.5
        x = x.to(dtype or self.dtype)
        if self.last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x.requires_grad_(grad)

    def gy(self, y: Tensor, seed: int = 0) -> Tensor:
        """A gradient for y, in its dtype and layout."""
        draw = torch.Generator().manual_seed(200 + seed)
        values = torch.randn(y.shape, generator=draw, dtype=torch.float64).to(y.dtype)
        last = y.dim() == 4 and y.is_contiguous(memory_format=torch.channels_last)
        return values.contiguous(memory_format=torch.channels_last) if last else values


def state(layer: nn.Module) -> dict[str, Any]:
    """Parameters, their gradients and the buffers of a layer."""
    found: dict[str, Any] = {}
    for name, parameter in layer.named_parameters():
        found[name] = parameter
        found[name + ".grad"] = parameter.grad
    return found | dict(layer.named_buffers())


def step(make: Make, layer: nn.Module, *inputs: Tensor, gy: Tensor | None = None) -> dict[str, Any]:
    """Forward and backward; output, gradients and state."""
    y = layer(*inputs)
    if y.requires_grad:
        y.backward(make.gy(y) if gy is None else gy)
    return {"y": y, "gx": [x.grad for x in inputs if x.is_leaf], **state(layer)}
