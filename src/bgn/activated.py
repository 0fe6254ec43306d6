"""BatchGroupNormAct2d: a normalizer, a residual and an activation in the normalizer's passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bgn import checks
from bgn._fx import leaf as fx_leaf
from bgn.activation import (
    INPUT,
    OUTPUT,
    SAVES,
    SLOPE,
    After,
    activation_of,
    checked,
    module_of,
    refuse_not_invertible,
)
from bgn.kernels.eligible import refuse_freed
from bgn.layers import GROUP, BatchGroupNorm2d
from bgn.renorm import Renorm

_TIMM = {  # names of timm's, and of torch.nn's modules, for what we fuse
    "relu": "relu",
    "leaky_relu": "leaky_relu",
    "silu": "silu",
    "swish": "silu",
    "hard_swish": "hardswish",
    "hardswish": "hardswish",
    "identity": "identity",
}


class BatchGroupNormAct2d(BatchGroupNorm2d):
    """:class:`BatchGroupNorm2d`, a residual and an activation in one: act(norm(x) + residual).

    The layer takes the time of the normalizer alone, and its backward pass keeps no more than that
    of a normalizer followed by an activation in place. Parameters, buffers and state_dict keys are
    those of :class:`BatchGroupNorm2d`.

    ``act`` is ``"relu"``, ``"leaky_relu"`` (with ``negative_slope``), ``"silu"``, ``"hardswish"``
    or ``"identity"``. ``residual``, of the input's shape, is added before it, in the same pass for
    relu, leaky_relu and identity. Where neither the C core nor the GPU core runs (transforms, other
    devices), the normalizer is followed by torch's operators, with the same result.

    ``save="output"``, for leaky_relu with a slope above 0 and for identity: the backward pass keeps
    the output, which the next convolution keeps anyway, and computes the input again from it; with
    a residual, it keeps that too. A batch keeps its input as before where the result would not be
    precise: if a weight is below 1e-3 (0.1 in bfloat16 and float16), absolutely or as a share of
    its bias; with ``renorm``; with a residual in bfloat16 or float16; outside of training mode; in
    a compiled graph; and where the C core does not run. Such a gradient cannot be differentiated
    again.

    Arguments from ``num_features`` to ``dtype`` are those of timm's BatchNormAct2d with
    ``num_groups`` in second place. timm's models of such layers (EfficientNet, RegNet, ...) take a
    function for ``norm_layer``, ``def norm(C, **options): return BatchGroupNormAct2d(C, 8,
    **options)``, and no class or partial that timm does not know. ``act_layer`` is a class, a name
    or a function that makes a module; a module other than those above is called after the
    normalizer. ``drop_layer`` comes before it.
    ``inplace`` is the module's own option and changes nothing where the activation is fused.

    >>> import torch
    >>> norm = BatchGroupNormAct2d(64, num_groups=1, act="relu")
    >>> x = torch.randn(2, 64, 7, 7)
    >>> norm(x, residual=x).shape
    torch.Size([2, 64, 7, 7])
    """

    save = INPUT

    def __init__(
        self,
        num_features: int,
        num_groups: int | str | None = None,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        apply_act: bool = True,
        act_layer: Any = None,
        act_kwargs: dict[str, Any] | None = None,
        inplace: bool = True,
        drop_layer: Callable[[], nn.Module] | None = None,
        device: Any = None,
        dtype: Any = None,
        *,
        act: str | None = None,
        negative_slope: float = SLOPE,
        save: str = INPUT,
        bias: bool = True,
        batch_blocks: int = 1,
        renorm: Renorm | bool | None = None,
        center: str = GROUP,
    ) -> None:
        checks.one_of("save", save, SAVES)
        if act is not None and act_layer is not None:
            raise TypeError(f"act={act!r} and act_layer={act_layer!r}; expected one of them")
        if not apply_act:
            module: nn.Module = nn.Identity()
        elif act_layer is not None:
            module = _made(act_layer, {"inplace": inplace, **(act_kwargs or {})})
        else:
            if act_kwargs:
                raise TypeError(f"act_kwargs={act_kwargs!r} are for act_layer, which is None")
            module = module_of(checked(act or "relu", negative_slope), inplace)
        super().__init__(
            num_features, num_groups, eps, momentum, affine, track_running_stats, device, dtype,
            bias=bias, batch_blocks=batch_blocks, renorm=renorm, center=center,
        )  # fmt: skip
        self.drop = nn.Identity() if drop_layer is None else drop_layer()
        self.act = module
        self.save_for_backward(save)

    def save_for_backward(self, save: str) -> None:
        """Set what the backward pass keeps: ``"input"`` or ``"output"``."""
        checks.one_of("save", save, SAVES)
        if save == OUTPUT:
            found = activation_of(self.act)
            name = type(self.act).__name__ if found is None else found.name
            refuse_not_invertible(name, 0.0 if found is None else found.slope)
        self.save = save

    @fx_leaf
    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        modules = self.__dict__["_modules"]
        drop, module = modules["drop"], modules["act"]
        act = activation_of(module, self.save) if type(drop) is nn.Identity else None
        alone = residual is None and self.save == INPUT
        if act is not None and not (alone and act.name == "identity"):
            return self._run(input, After(act, residual))
        refuse_freed(residual=residual)
        checks.residual(residual, input)
        output = drop(self._run(input, None))
        activated: Tensor = module(output if residual is None else output + residual)
        return activated

    def extra_repr(self) -> str:
        save = f", save={self.save!r}" if self.save != INPUT else ""
        return super().extra_repr() + save


def is_fused(layer: nn.Module) -> bool:
    """Whether a layer is a BatchGroupNormAct2d with the forward of that class."""
    known = type(layer).forward is BatchGroupNormAct2d.forward
    return known and isinstance(layer, BatchGroupNormAct2d)


def _made(act_layer: Any, options: dict[str, Any]) -> nn.Module:
    """The module of an ``act_layer``, with ``inplace`` where it takes that."""
    if isinstance(act_layer, str):
        name = _TIMM.get(act_layer.replace("-", "_").lower())
        if name is None:
            raise ValueError(
                f"act_layer={act_layer!r} is not known; accepted: {', '.join(_TIMM)}, or a class of"
                " modules"
            )
        inplace = options.pop("inplace")
        slope = options.pop("negative_slope", SLOPE)
        if options:
            raise TypeError(f"act_kwargs={options!r} are not known for act_layer={act_layer!r}")
        return module_of(checked(name, slope), inplace)
    try:
        made = act_layer(**options)
    except TypeError:
        options.pop("inplace")
        made = act_layer(**options)
    if not isinstance(made, nn.Module):
        raise TypeError(f"act_layer={act_layer!r} gives a {type(made).__name__}; expected a module")
    return made
