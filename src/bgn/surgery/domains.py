"""One copy of every normaliser per domain (Chang et al. 2019), for networks that see images of several kinds."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bgn import checks
from bgn.surgery.kinds import normalizers
from bgn.surgery.modules import move_hooks, replace
from bgn.surgery.optimizer import add_parameters

Parts = tuple[tuple[str, int], ...]  # domains and sizes of consecutive parts of a batch


class DomainNorm(nn.ModuleDict):
    """A normaliser with a copy of its own for every domain: weight, bias and, if it has them, running statistics.

    :func:`convert_domains` puts it in place of the normalisers of a model; ``with bgn.domain(model, name)`` chooses the copy.
    Without that it refuses to run, rather than to run with the wrong one. Keys are those of the layer with the domain before
    them, such as ``bn1.source.weight``; keys without a domain are loaded into every copy.

    >>> norm = DomainNorm({"source": nn.BatchNorm2d(8), "target": nn.BatchNorm2d(8)})
    >>> with domain(norm, "target"):
    ...     y = norm(torch.randn(2, 8, 4, 4))
    >>> int(norm["source"].num_batches_tracked), int(norm["target"].num_batches_tracked)
    (0, 1)
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        _check_names(tuple(layers))
        super().__init__(layers)
        self.current: str | Parts | None = None
        self.entered = -1  # the backward pass during which the domain was chosen; -1 outside of any

    def forward(self, input: Tensor) -> Tensor:
        current = self.current
        if current is None:
            raise RuntimeError(
                f"no domain is chosen; expected: with bgn.domain(model, ...), one of {', '.join(self)}"
            )
        if not torch.compiler.is_compiling() and self.entered != torch._C._current_graph_task_id():
            raise RuntimeError(
                f"domain {current!r} was chosen outside of what is being recomputed for a backward pass, where it may not be the"
                " one of the forward pass; enter bgn.domain within the checkpointed function"
            )
        if isinstance(current, str):
            output: Tensor = self[current](input)
            return output
        sizes = [size for _, size in current]
        if sum(sizes) != len(input):
            raise ValueError(
                f"domain={list(current)} are {sum(sizes)} images, the batch has {len(input)}"
            )
        return torch.cat(
            [
                self[name](part)
                for (name, _), part in zip(current, torch.split(input, sizes), strict=True)
            ]
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "current": None,
            "entered": -1,
        }  # a copy that is made within a context is not in it

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        plain = [
            key
            for key in state_dict
            if key.startswith(prefix) and key[len(prefix) :].split(".")[0] not in self
        ]
        if not any(key.startswith(prefix + name + ".") for key in state_dict for name in self):
            for key in plain:
                value = state_dict.pop(key)
                state_dict.update(
                    {prefix + name + "." + key[len(prefix) :]: value for name in self}
                )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def convert_domains(
    model: nn.Module,
    domains: Sequence[str] = ("source", "target"),
    *,
    optimizer: torch.optim.Optimizer | None = None,
) -> nn.Module:
    """Give every normaliser of a model one copy per domain, in place; returns the model (or its replacement).

    All copies begin as the layer was. Parameters of the first domain are the ones that were there; with ``optimizer`` the
    others are trained too. Converting twice changes nothing. Forward hooks of a layer stay where it was.

    >>> model = convert_domains(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> list(model.state_dict())[2:5]
    ['1.source.weight', '1.source.bias', '1.source.running_mean']
    >>> with domain(model, "source"):
    ...     y = model(torch.randn(2, 3, 8, 8))
    """
    names = tuple(domains)
    _check_names(names)
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise TypeError(
            "model is wrapped in DistributedDataParallel, which keeps lists of its parameters; convert model.module first"
        )
    inside = set()
    for where, module in model.named_modules():
        if isinstance(module, DomainNorm):
            if tuple(module) != names:
                raise ValueError(
                    f"domains={names}, but {where or 'the model'} has {', '.join(module)} already"
                )
            inside |= {id(layer) for layer in module.modules()}
    found = {name: layer for name, layer in normalizers(model).items() if id(layer) not in inside}
    if not found:
        if inside:
            return model
        raise ValueError(
            f"model={type(model).__name__} has no normaliser that is known here; nothing to convert"
        )
    own = list(found.values())
    copies = {
        names[0]: own,
        **{name: copy.deepcopy(own) for name in names[1:]},
    }  # at once: what is shared stays so
    replacements: dict[nn.Module, nn.Module] = {}
    for i, layer in enumerate(own):
        wrapper = DomainNorm({name: copies[name][i] for name in names})
        wrapper.train(layer.training)
        move_hooks([copies[name][i] for name in names], wrapper)
        replacements[layer] = wrapper
    if optimizer is not None:
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        added = {
            id(new): (f"{where}.{name}.{key}", new)
            for name in names[1:]
            for where, old_layer, layer in zip(found, own, copies[name], strict=True)
            for (key, old), new in zip(
                old_layer.named_parameters(), layer.parameters(), strict=True
            )
            if id(old) in known
        }
        add_parameters(optimizer, list(added.values()))
    return replace(model, replacements)


def keep_domain(model: nn.Module, name: str) -> nn.Module:
    """Leave of every normaliser only the copy for one domain, in place: an ordinary model again, to fold or to export.

    >>> model = convert_domains(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> keep_domain(model, "target")[1]
    BatchNorm2d(8, ...)
    """
    replacements: dict[nn.Module, nn.Module] = {}
    for wrapper in _wrappers(model, [name]):
        layer = wrapper[name]
        move_hooks([wrapper], layer)
        replacements[wrapper] = layer
    return replace(model, replacements)


@contextlib.contextmanager
def domain(model: nn.Module, name: str | Sequence[tuple[str, int]]) -> Iterator[None]:
    """A context in which the model normalises for one domain; or, with [("source", 30), ("target", 30)], the first 30 images of
    every batch for the one and the next 30 for the other, each part with statistics of its own.

    Contexts may be nested; afterwards all is as before.

    >>> model = convert_domains(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> with domain(model, [("source", 4), ("target", 2)]):
    ...     y = model(torch.randn(6, 3, 8, 8))
    """
    choice: str | Parts = (
        name if isinstance(name, str) else tuple((str(part), int(size)) for part, size in name)
    )
    parts = ((choice, 1),) if isinstance(choice, str) else choice
    if not parts:
        raise ValueError(
            "domain=[] has no parts; expected a domain, or pairs of a domain and a number of images"
        )
    for part, size in parts:
        checks.positive_int(f"images of domain {part!r}", size)
    wrappers = _wrappers(model, [part for part, _ in parts])
    before = [(wrapper.current, wrapper.entered) for wrapper in wrappers]
    entered = torch._C._current_graph_task_id()
    try:
        for wrapper in wrappers:
            wrapper.current, wrapper.entered = choice, entered
        yield
    finally:
        for wrapper, old in zip(wrappers, before, strict=True):
            wrapper.current, wrapper.entered = old


def _wrappers(model: nn.Module, names: Sequence[str]) -> list[DomainNorm]:
    found = [module for module in model.modules() if isinstance(module, DomainNorm)]
    if not found:
        raise ValueError(
            f"model={type(model).__name__} has no normalisers per domain; expected one of bgn.convert_domains"
        )
    for wrapper in found:
        for name in names:
            if name not in wrapper:
                raise ValueError(f"domain={name!r} is not one of {', '.join(wrapper)}")
    return found


def _check_names(names: tuple[str, ...]) -> None:
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"domains={names}; expected two or more different names")
    for name in names:
        if (
            not (isinstance(name, str) and name.isidentifier())
            or hasattr(nn.ModuleDict, name)
            or name == "training"
        ):
            raise ValueError(
                f"domains={names}: {name!r} cannot be the name of a domain; expected a word such as 'source'"
            )
