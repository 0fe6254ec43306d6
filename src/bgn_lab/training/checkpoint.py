"""Where a run stands, in one file that is there whole or not at all: tensors as safetensors, the rest as JSON in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from bgn_lab.recipe import Recipe
from bgn_lab.system import files
from bgn_lab.training.loop import Score

NAME = "checkpoint.safetensors"
_MARK = "bgn_lab checkpoint"
_VERSION = 2


@dataclass
class Progress:
    """What an interrupted run needs to go on: epochs done, steps of the next, their score and time, and the loss' scale."""

    epoch: int = 0
    step: int = 0
    score: Score = field(default_factory=Score)  # of these steps
    seconds: float = 0.0  # in all
    spent: float = 0.0  # on these steps
    scaler: dict[str, Any] | None = None  # in float16
    plan: dict[str, Tensor] = field(
        default_factory=dict
    )  # of the task, for the epoch under way or the last one


Optimizers = Mapping[str, torch.optim.Optimizer]  # by names that begin with "optimizer"


def store(
    path: Path, recipe: Recipe, model: nn.Module, optimizers: Optimizers, progress: Progress
) -> None:
    """Write a checkpoint over the one before."""
    tensors: dict[str, Tensor] = {
        f"model.{name}": tensor for name, tensor in model.state_dict().items()
    }
    tensors |= {f"plan.{name}": tensor for name, tensor in progress.plan.items()}
    about = {
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
    files.write(
        path,
        save(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            {_MARK: json.dumps(about)},
        ),
    )


def restore(
    content: bytes, path: Path, recipe: Recipe, model: nn.Module, optimizers: Optimizers
) -> Progress:
    """Put a checkpoint into model and optimizers: the content of the file at ``path``, which this process need not have.

    What is damaged, or of another run, is refused and left alone.
    """
    about, tensors = _read(content, path)
    differences = [
        f"{name}={about['recipe'].get(name)!r} there, {value!r} here"
        for name, value in recipe.identity().items()
        if about["recipe"].get(name) != value
    ]
    if differences:
        raise ValueError(
            f"{path} belongs to another run ({'; '.join(differences)}); choose another --out, or remove it"
        )
    try:
        model.load_state_dict(
            {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")}
        )
    except RuntimeError as error:  # the recipe is the same, so the data must have changed
        raise ValueError(
            f"{path} does not fit the network, perhaps because the classes changed: {error}"
        ) from None
    for name, optimizer in optimizers.items():
        own = {
            key[len(name) + 1 :]: tensor
            for key, tensor in tensors.items()
            if key.startswith(f"{name}.")
        }
        _restore(optimizer, about[name], own)
    plan = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("plan.")}
    return Progress(
        **{**about["progress"], "score": Score(**about["progress"]["score"]), "plan": plan}
    )


def _restore(
    optimizer: torch.optim.Optimizer, about: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for index, slots in about["scalars"].items():
        state.setdefault(int(index), {}).update(slots)
    for name, tensor in tensors.items():
        index, _, slot = name.partition(".")
        own = parameters[int(index)]
        if tensor.shape == own.shape:  # fused optimizers pair elements by their place in memory
            tensor = torch.empty_like(own, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
        state.setdefault(int(index), {})[slot] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": about["groups"]})


def _read(content: bytes, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")  # of the header, which is JSON
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it to begin this run anew") from None
    try:
        about = json.loads(metadata[_MARK])
    except (KeyError, ValueError):
        raise ValueError(
            f"{path} is no checkpoint of this program; remove it or choose another --out"
        ) from None
    if about.get("version") != _VERSION:
        raise ValueError(
            f"{path} has version {about.get('version')}; this program reads version {_VERSION}"
        )
    return about, tensors
