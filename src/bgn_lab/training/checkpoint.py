"""Checkpoints: a run in progress, as one file that is whole or refused.

The file is in the safetensors format, with everything that is not a tensor as JSON in its header,
so nothing is unpickled. The header also holds a SHA-256 hash of all other bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from bgn_lab.recipe import Recipe
from bgn_lab.system import files, reading, schema
from bgn_lab.system.printable import shorten
from bgn_lab.training.loop import Score

NAME = "checkpoint.safetensors"
_MARK = "bgn_lab checkpoint"
_HASH = "sha256"
_BLANK = "0" * 64  # stands where the hash will be, while the hash is computed
_VERSION = 3


@dataclass
class Progress:
    """Where a run is: epochs done, steps of the next one, their score and time."""

    epoch: int = 0
    step: int = 0
    score: Score = field(default_factory=Score)  # of these steps
    seconds: float = 0.0  # of all epochs done
    spent: float = 0.0  # seconds of these steps
    scaler: dict[str, Any] | None = None  # of the loss, in float16
    plan: dict[str, Tensor] = field(default_factory=dict)  # of the task, for the current epoch


Optimizers = Mapping[str, torch.optim.Optimizer]  # by names that begin with "optimizer"


def store(
    path: Path, recipe: Recipe, model: nn.Module, optimizers: Optimizers, progress: Progress
) -> None:
    """Write a checkpoint over the one before."""
    tensors: dict[str, Tensor] = {
        f"model.{name}": tensor for name, tensor in model.state_dict().items()
    }
    tensors |= {f"plan.{name}": tensor for name, tensor in progress.plan.items()}
    about: dict[str, Any] = {
        "version": _VERSION,
        "recipe": recipe.identity(),
        "progress": asdict(replace(progress, plan={})),
    }
    for name, optimizer in optimizers.items():
        state = optimizer.state_dict()
        scalars: dict[str, dict[str, Any]] = {}
        for index, slots in state["state"].items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    tensors[f"{name}.{index}.{slot}"] = value
                else:
                    scalars.setdefault(str(index), {})[slot] = value
        about[name] = {"groups": state["param_groups"], "scalars": scalars}
    about["tensors"] = sorted(tensors)
    files.write(path, encode(tensors, about))


def restore(
    content: bytes, path: Path, recipe: Recipe, model: nn.Module, optimizers: Optimizers
) -> Progress:
    """Load a checkpoint into the model and the optimizers.

    ``content`` is that of the file at ``path``, which may lie on the machine of another process.
    Everything is checked before anything is loaded: a checkpoint that is damaged, belongs to
    another run or does not fit is refused, and the file stays as it is.
    """
    about, tensors = _read(content, path)
    remedy = "; remove it to begin this run anew"
    with reading.naming(path, remedy):
        values = _progress(about)
        odd = reading.differences(about["recipe"], recipe.identity())
    if odd:
        raise ValueError(
            f"{path} belongs to another run ({odd}); choose another --out, or remove it"
        )
    with reading.naming(path, remedy):
        problem = next(_problems(tensors, about, model, optimizers), None)
    if problem:
        raise ValueError(
            f"{path} does not fit this run ({problem}), perhaps because the data or the program "
            "changed; remove it to begin this run anew"
        )
    model.load_state_dict(_below("model", tensors))
    for name, optimizer in optimizers.items():
        _load(optimizer, about[name], _below(name, tensors))
    return Progress(
        **{**values, "score": Score(**values["score"]), "plan": _below("plan", tensors)}
    )


def _progress(about: dict[str, Any]) -> dict[str, Any]:
    """The checked fields of :class:`Progress`."""
    values: dict[str, Any] = about["progress"]
    kinds = {"epoch": int, "step": int, "score": dict, "seconds": float, "spent": float}
    for name, kind in kinds.items():
        schema.check(name, values[name], kind)
    score = values["score"]
    schema.check("score: total", score["total"], schema.Unbounded)
    for name in ("right", "images"):
        schema.check(f"score: {name}", score[name], int)
    schema.check("scaler", values["scaler"], dict | None)
    for name in set(values) - {f.name for f in fields(Progress)} | set(score) - set(vars(Score())):
        raise ValueError(f"{name} is unknown")
    return values


def _below(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the model, the plan or an optimizer, by their names there."""
    return {
        name[len(part) + 1 :]: tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{part}.")
    }


def _problems(
    tensors: Mapping[str, Tensor], about: dict[str, Any], model: nn.Module, optimizers: Optimizers
) -> Iterator[str]:
    """Reasons why a checkpoint cannot be loaded."""
    for name in sorted(set(about["tensors"]) ^ set(tensors)):
        yield f"{name} is missing" if name in about["tensors"] else f"{name} is unexpected"
    mine, theirs = model.state_dict(), _below("model", tensors)
    for name in sorted(set(mine) ^ set(theirs)):
        yield f"model.{name} is missing" if name in mine else f"model.{name} is unexpected"
    for name in sorted(set(mine) & set(theirs)):
        yield from _differences(f"model.{name}", theirs[name], mine[name].shape, mine[name].dtype)
    for name in sorted({k for k in about if k.startswith("optimizer")} ^ set(optimizers)):
        yield f"{name} is missing" if name in optimizers else f"{name} is unexpected"
    for name, optimizer in optimizers.items():
        yield from _optimizer_problems(name, optimizer, about[name], _below(name, tensors))


def _optimizer_problems(
    name: str, optimizer: torch.optim.Optimizer, about: dict[str, Any], tensors: dict[str, Tensor]
) -> Iterator[str]:
    mine = [group["params"] for group in optimizer.state_dict()["param_groups"]]
    if [group["params"] for group in about["groups"]] != mine:
        yield f"{name} has other groups of parameters"
        return
    for own, its in zip(optimizer.state_dict()["param_groups"], about["groups"], strict=True):
        for key in sorted(set(own) ^ set(its)):
            yield f"{name}: {key} is {'missing' if key in own else 'unexpected'}"
        for key in own:
            if not _alike(key, own[key], its[key]):
                yield f"{name} has {key}={shorten(repr(its[key]), 60)}, here {own[key]!r}"
    for index, slots in about["scalars"].items():
        schema.check(f"{name}: scalars", index, str)
        schema.check(f"{name}: {index}", slots, dict[str, float | None])
        if not index.isdecimal() or int(index) >= sum(map(len, mine)):
            yield f"{name} has values for parameter {index}, which is not there"
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, tensor in tensors.items():
        index, _, slot = key.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            yield f"{name}.{key} belongs to none of the {len(parameters)} parameters"
        elif slot == "step":  # a counter, in torch's optimizers
            yield from _differences(f"{name}.{key}", tensor, torch.Size(), tensor.dtype)
        else:  # one value for each of the parameter
            like = parameters[int(index)]
            yield from _differences(f"{name}.{key}", tensor, like.shape, like.dtype)


def _alike(key: str, mine: Any, theirs: Any) -> bool:
    """Whether a hyperparameter is the same; the learning rate moves, and is any number."""
    if key == "lr":
        schema.check(key, theirs, schema.Unbounded)
        return True
    same = list(mine) if isinstance(mine, tuple) else mine  # as in JSON
    return type(same) is type(theirs) and bool(same == theirs)


def _differences(name: str, tensor: Tensor, shape: torch.Size, dtype: torch.dtype) -> Iterator[str]:
    if tensor.shape != shape:
        yield f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}"
    if tensor.dtype != dtype:
        yield f"{name} has dtype {tensor.dtype}, expected {dtype}"


def _load(
    optimizer: torch.optim.Optimizer, about: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for index, slots in about["scalars"].items():
        state.setdefault(int(index), {}).update(slots)
    for name, tensor in tensors.items():
        index, _, slot = name.partition(".")
        like = parameters[int(index)]
        if tensor.shape == like.shape:  # fused optimizers pair elements by their place in memory
            tensor = torch.empty_like(like, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
        state.setdefault(int(index), {})[slot] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": about["groups"]})


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors that share no memory, which safetensors refuses: tied weights twice."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.contiguous()
        if own.numel() and own.untyped_storage().data_ptr() in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        found[name] = own
    return found


def encode(tensors: Mapping[str, Tensor], about: dict[str, Any]) -> bytes:
    """Bytes of a checkpoint file, with their hash in the header."""
    contiguous = separate(tensors)
    content = save(contiguous, {_MARK: json.dumps(about), _HASH: _BLANK})
    end = _header_end(content)
    return _replaced(content[:end], _BLANK, _hash(content, _BLANK)) + content[end:]


def _header_end(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")  # the length of the header comes first


def _replaced(header: bytes, old: str, new: str) -> bytes:
    """The header with another hash. Quotes within JSON within JSON are escaped, so it is found."""
    return header.replace(f'"{_HASH}":"{old}"'.encode(), f'"{_HASH}":"{new}"'.encode(), 1)


def _hash(content: bytes, stored: str) -> str:
    """Hash of all bytes but those of the stored hash."""
    end = _header_end(content)
    found = hashlib.sha256(_replaced(content[:end], stored, _BLANK))
    found.update(memoryview(content)[end:])
    return found.hexdigest()


def _read(content: bytes, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Everything that is not a tensor, and the tensors."""
    damaged = f"{path} is damaged ({{}}); remove it to begin this run anew"
    try:
        metadata = schema.parse(content[8 : _header_end(content)]).get("__metadata__", {})
        stored = str(metadata.get(_HASH))
    except (ValueError, AttributeError):
        raise ValueError(damaged.format("it has no header")) from None
    if _MARK not in metadata:
        raise ValueError(
            f"{path} is no checkpoint of this program; remove it or choose another --out"
        )
    if _hash(content, stored) != stored:
        raise ValueError(damaged.format("its content does not match its hash"))
    try:
        about, tensors = schema.parse(metadata[_MARK]), load(content)
    except (SafetensorError, *reading.DAMAGE) as error:
        raise ValueError(damaged.format(shorten(str(error), reading.LONGEST))) from None
    if about.get("version") != _VERSION:
        found = shorten(repr(about.get("version")), 60)
        raise ValueError(
            f"{path} has version {found}, this program reads version {_VERSION}; "
            "remove it to begin this run anew"
        )
    return about, tensors
