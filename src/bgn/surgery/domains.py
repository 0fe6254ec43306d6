"""One copy of every normalizer per domain (Chang et al. 2019), for several kinds of images."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bgn import checks
from bgn.surgery.kinds import some_normalizers
from bgn.surgery.modules import move_hooks, refuse_data_parallel, replace
from bgn.surgery.optimizer import add_parameters

Parts = tuple[tuple[str, int], ...]  # domains and sizes of consecutive parts of a batch


class DomainNorm(nn.ModuleDict):
    """A normalizer with one copy per domain: weight, bias and running statistics, if it has them.

    :func:`convert_domains` puts it in place of the normalizers of a model, and
    ``with bgn.domain(model, name)`` chooses the copy. Outside of such a context it raises an error,
    because any copy might be the wrong one. State_dict keys contain the domain, such as
    ``bn1.source.weight``; keys without a domain are loaded into every copy.

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
        self.entered = -1  # backward pass during which the domain was chosen; -1 outside of any

    def forward(self, input: Tensor) -> Tensor:
        current = self.current
        if current is None:
            raise RuntimeError(
                "no domain is chosen; expected with bgn.domain(model, name),"
                f" where name is one of {', '.join(self)}"
            )
        if not torch.compiler.is_compiling() and self.entered != torch._C._current_graph_task_id():
            raise RuntimeError(
                f"domain {current!r} was chosen outside of a function that is recomputed in the"
                " backward pass, so it may not be the domain of the forward pass; enter bgn.domain"
                " within the checkpointed function"
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
        # a copy that is made within a context is not in the context
        return {**self.__dict__, "current": None, "entered": -1}

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
    """Give every normalizer of a model one copy per domain, in place.

    Returns the model, or its replacement if the model itself is a normalizer. All copies start as
    the layer was. The parameters of the first domain are the old objects; with ``optimizer``, the
    new ones are trained too. Converting twice changes nothing. Forward hooks of a layer are then
    hooks of its replacement.

    >>> model = convert_domains(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> list(model.state_dict())[2:5]
    ['1.source.weight', '1.source.bias', '1.source.running_mean']
    >>> with domain(model, "source"):
    ...     y = model(torch.randn(2, 3, 8, 8))
    """
    names = tuple(domains)
    _check_names(names)
    refuse_data_parallel(model, "parameters")
    inside = set()
    for where, module in model.named_modules():
        if isinstance(module, DomainNorm):
            if tuple(module) != names:
                raise ValueError(
                    f"domains={names}, but {where or 'the model'} has {', '.join(module)} already"
                )
            inside |= {id(layer) for layer in module.modules()}
    known = some_normalizers(model, "convert")
    found = {name: layer for name, layer in known.items() if id(layer) not in inside}
    if not found:
        return model
    own = list(found.values())
    # all layers in one deepcopy, so that tensors which they share stay shared
    copies = {names[0]: own, **{name: copy.deepcopy(own) for name in names[1:]}}
    replacements: dict[nn.Module, nn.Module] = {}
    for i, layer in enumerate(own):
        wrapper = DomainNorm({name: copies[name][i] for name in names})
        wrapper.train(layer.training)
        move_hooks([copies[name][i] for name in names], wrapper)
        replacements[layer] = wrapper
    if optimizer is not None:
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        added = {
            id(new): (f"{where}.{name}.{key}", new)
            for name in names[1:]
            for where, old_layer, layer in zip(found, own, copies[name], strict=True)
            for (key, old), new in zip(
                old_layer.named_parameters(), layer.parameters(), strict=True
            )
            if id(old) in trained
        }
        add_parameters(optimizer, list(added.values()))
    return replace(model, replacements)


def keep_domain(model: nn.Module, name: str) -> nn.Module:
    """Keep the copy of one domain of every normalizer, in place: a model to fold or to export.

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
    """A context in which the model normalizes for one domain, or for parts of the batch.

    With ``[("source", 30), ("target", 30)]`` the first 30 images of every batch are of one domain
    and the next 30 of the other, each part with its own statistics. Contexts may be nested.

    >>> model = convert_domains(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> with domain(model, [("source", 4), ("target", 2)]):
    ...     y = model(torch.randn(6, 3, 8, 8))
    """
    choice: str | Parts = name if isinstance(name, str) else tuple(map(_part, name))
    if not choice:
        raise ValueError(
            f"domain={name!r} is empty; expected a domain, or pairs of a domain and a number of"
            " images"
        )
    used = [choice] if isinstance(choice, str) else [part for part, _ in choice]
    wrappers = _wrappers(model, used)
    before = [(wrapper.current, wrapper.entered) for wrapper in wrappers]
    entered = torch._C._current_graph_task_id()
    try:
        for wrapper in wrappers:
            wrapper.current, wrapper.entered = choice, entered
        yield
    finally:
        for wrapper, old in zip(wrappers, before, strict=True):
            wrapper.current, wrapper.entered = old


def _part(pair: tuple[str, int]) -> tuple[str, int]:
    name, size = pair
    return str(name), checks.positive_int(f"images of domain {name!r}", size)


def _wrappers(model: nn.Module, names: Sequence[str]) -> list[DomainNorm]:
    found = [module for module in model.modules() if isinstance(module, DomainNorm)]
    if not found:
        raise ValueError(
            f"model={type(model).__name__} has no normalizers per domain;"
            " expected a model from bgn.convert_domains"
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
                f"domains={names}: {name!r} cannot be the name of a domain;"
                " expected a word such as 'source'"
            )
