"""What a layer with running statistics needs to correct its batches towards them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bgn import kernels
from bgn.partition import Partition, centered
from bgn.recomputed import (
    cache_reference,
    cached_reference,
    has_values,
    may_be_checkpointed,
    recomputing,
)
from bgn.renorm import Reference, Renorm, wanted
from bgn.running import Running, are_trained


class Renormalized(nn.Module):
    """Settings, steps of the warmup, and the reference of a batch; see :mod:`bgn.renorm`."""

    cut: Callable[..., Partition]
    renorm: Renorm | None = None
    renorm_steps: Tensor | None

    def set_renorm(self, renorm: Renorm | bool | None, steps: int = 0) -> None:
        """Renormalize from now on, as after ``steps`` training batches; or no longer, with None."""
        renorm, mean = wanted(renorm), self._buffers.get("running_mean")
        if renorm is not None and mean is None:
            raise ValueError(f"renorm={renorm} needs running statistics, and running_mean is None")
        self.renorm = renorm
        self._buffers.pop("renorm_steps", None)
        if renorm is not None and mean is not None:
            self.register_buffer("renorm_steps", torch.tensor(steps, device=mean.device))

    def _must_break_graph(self, input: Tensor) -> bool:
        """Whether a compiled graph cannot have this layer.

        A checkpointed segment that runs again reads statistics that have moved. The operator of
        :mod:`bgn.kernels.operators` notices and raises an error; other nodes would not.
        """
        if not (self.training and torch.compiler.is_compiling()) or torch.compiler.is_exporting():
            return False
        return input.device.type != "cpu" or self.cut is centered

    def _reference(self, mean: Any, var: Any, input: Tensor, num_groups: int) -> Reference:
        """What this batch is corrected towards, before it moves the running statistics."""
        renorm, steps = self.renorm, self._buffers.get("renorm_steps")
        if renorm is None or mean is None or var is None or steps is None:
            raise ValueError(
                "renorm needs running_mean, running_var and renorm_steps, and one is None;"
                " expected tensors"
            )
        share: float | Tensor = 1.0
        if renorm.warmup:
            if steps.device.type == "cpu" and has_values(steps):
                share = renorm.share(int(steps))
            else:  # reading a number would wait for the device, or stop the compiler
                share = (steps / renorm.warmup).clamp(max=1.0)
        reference = Reference(mean, var, renorm.r_max, renorm.d_max, share)
        if may_be_checkpointed() and input.numel() and has_values(input):
            with torch.no_grad():
                x = input.to_dense() if input.is_mkldnn else input
                means = kernels.moments(x, kernels.plan(self.cut, x, num_groups)).mean
                if recomputing():
                    return cached_reference(self, means) or reference
                cache_reference(self, means, reference)
        return reference

    def _count_step(self, running: Running | None) -> None:
        """One more batch of the warmup."""
        renorm = self.renorm
        if running is None or renorm is None or not renorm.warmup:
            return
        steps = self._buffers.get("renorm_steps")
        if steps is None:
            return
        read = steps.device.type == "cpu" and has_values(steps)
        if not read or int(steps) < renorm.warmup:
            with torch.no_grad():
                steps.add_(1)

    def _load_steps(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Complete a checkpoint of a layer without renormalization, and the other way round.

        Statistics that were trained are a good reference: then no warmup is needed.
        """
        key = prefix + "renorm_steps"
        if self.renorm is None or self.renorm_steps is None:
            state_dict.pop(key, None)  # it matters for training with renormalization only
            return
        own: Any = self
        mean, var = (state_dict.get(prefix + f"running_{name}") for name in ("mean", "var"))
        if key not in state_dict and isinstance(mean, Tensor) and isinstance(var, Tensor):
            count = state_dict.get(prefix + "num_batches_tracked")
            trained = mean.is_meta or are_trained(mean, var, count, own.momentum)
            steps = self.renorm.warmup * trained
            state_dict[key] = torch.tensor(steps, device=mean.device)
