"""Networks that begin with the weights of a file: torchvision's, or those of a run.

Weights of batch normalization also fit BGN and GBGN, which :func:`bgn.convert` gives the same
output at test time. No conversion does that for normalizers with statistics of each sample, which
need weights of their own kind.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import bgn
from bgn.factory import BATCH_WIDE
from bgn.surgery.kinds import normalizers
from bgn_lab import norms
from bgn_lab.norms import Norm
from bgn_lab.recipe import Recipe
from bgn_lab.recipe.norm import GROUPED
from bgn_lab.system import reading
from bgn_lab.system.memory import available_memory, gigabytes
from bgn_lab.system.printable import shorten

WEIGHTS, RECIPE = (
    "model.safetensors",
    "recipe.json",
)  # what bgn_lab.training, which builds on this, writes for a run
SUFFIXES = (".safetensors", ".pth", ".pt")
ACCEPTED = (
    "expected a .safetensors, .pth or .pt file, or the folder of a finished run of "
    "bgn run classification"
)
VAR, COUNTER = ".running_var", ".num_batches_tracked"
STATISTICS = (".running_mean", VAR)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
STEPS = ".renorm_steps"  # of a warmup, which trained statistics need none of


def load(
    path: Path,
    build: Callable[[Norm], nn.Module],
    recipe: Recipe,
    head: str,
    exact: bool = True,
) -> nn.Module:
    """Build a network with the recipe's normalizer and the weights of a file.

    Its last layer stays as built.

    Args:
        path: a .safetensors file; a .pth or .pt file with a state_dict, or with a dict that has one
            as "state_dict" or "model"; or the folder of a finished run.
        build: makes the network from a constructor of normalizers.
        recipe: says which normalizer. BGN takes, in each layer, the number of groups nearest to the
            recipe's to which BN converts exactly. Where maps decide it stays as good as BN until
            :func:`bgn_lab.norms.resolve_groups`. Batch renormalization begins later, with
            :func:`bgn_lab.norms.with_partners`.
        head: prefix of the last layer's keys, such as "fc." or "classifier."; all other weights
            must fit exactly.
        exact: refuse BN's weights for a normalizer with statistics of each sample. Without, such a
            network gets BN's weight and bias, and another output.
    """
    file = _file(path)
    weights = {name: t for name, t in _read(file).items() if not name.endswith(STEPS)}
    norm = _norm(file, weights, recipe, exact)
    bn = partial(nn.BatchNorm2d, eps=recipe.norm_eps, momentum=recipe.norm_momentum)
    model = build(bn if norm == "bn" else norms.constructor(recipe))
    if recipe.by_maps and norm == "bgn":
        _take_groups(model, weights)
    _fill(model, weights, norm, head, file)
    several = recipe.renorm or recipe.simulate_workers > 1  # see norms.constructor
    target = "bgn" if recipe.norm == "bn" and several else recipe.norm
    if norm == target:
        return model
    options: dict[str, Any] = {"center": recipe.center} if target == "bgn" else {}
    if target in GROUPED:
        options["num_groups"] = lambda layer: _groups(recipe, layer.num_features)
    with warnings.catch_warnings():
        if target not in BATCH_WIDE:  # the caller knows that the output changes
            warnings.simplefilter("ignore")
        return bgn.convert(model, target, **options)


def _groups(recipe: Recipe, C: int) -> int:
    """Groups of GN, BGN or GBGN in the place of a BN; BN with a partner of BGN is BGN, too."""
    if recipe.by_maps:
        # keep all statistics until the feature maps, which decide how many to merge, are known
        return C
    layer: Any = norms.constructor(recipe)(C)
    G: int = layer.num_groups
    if recipe.norm == "gn":  # of whole channels
        return bgn.nearest_groups(C, min(G, C))
    return bgn.nearest_groups(C, G) if recipe.norm == "bgn" else G


def _file(path: Path) -> Path:
    if not path.exists():
        raise ValueError(f"{path} does not exist; {ACCEPTED}")
    if path.is_dir():
        if not (path / WEIGHTS).exists():
            raise ValueError(f"{path} has no {WEIGHTS}, so no run has finished there; {ACCEPTED}")
        return path / WEIGHTS
    if not path.is_file():  # opening a pipe would wait for its writer
        raise ValueError(f"{path} is not a file; {ACCEPTED}")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} ends with {path.suffix!r}; {ACCEPTED}")
    return path


def _read(file: Path) -> dict[str, Tensor]:
    """The tensors by name, whatever they are wrapped in."""
    found: Any
    _refuse_size(file)
    try:
        safe = file.suffix == ".safetensors"
        found = load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles raise whatever they stumble over
        why = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        why = shorten(why, reading.LONGEST)
        if isinstance(
            error, pickle.UnpicklingError | EOFError
        ):  # the first one's text explains how to trust a file too much
            why = "damaged, or more than tensors in it"
        raise ValueError(
            f"{file} cannot be read: {why}; "
            "expected a state_dict, as safetensors or torch.save write it"
        ) from None
    if isinstance(found, dict):
        found = next(
            (found[key] for key in ("state_dict", "model") if isinstance(found.get(key), dict)),
            found,
        )
    whole = isinstance(found, dict) and all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()
    )
    if not whole or not found:
        what = f"a {type(found).__name__}" + (
            f" with {_few([str(key) for key in found])}" if isinstance(found, dict) else ""
        )
        raise ValueError(
            f"{file} holds {what}; "
            'expected a state_dict, alone or as "state_dict" or "model" of a dict'
        )
    if odd := [key for key, tensor in found.items() if not _is_dense(tensor)]:
        raise ValueError(f"{file} has {_few(odd)}; expected dense tensors of real numbers")
    prefix = "module." if all(key.startswith("module.") for key in found) else ""  # of DataParallel
    return {key[len(prefix) :]: tensor for key, tensor in found.items()}


def _is_dense(tensor: Tensor) -> bool:
    """Whether it can be copied into a parameter; files can also hold sparse and empty shells."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and (tensor.is_floating_point() or tensor.dtype in INTEGERS)
    )


def _refuse_size(file: Path) -> None:
    """Refuse more than memory can hold: a few bytes of a zip file can stand for gigabytes."""
    needed, available = file.stat().st_size, available_memory()
    if zipfile.is_zipfile(file):
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
            needed = max(needed, sum(member.file_size for member in archive.infolist()))
    if available is not None and needed > available:
        raise ValueError(
            f"{file} needs {gigabytes(needed)} of memory when loaded, {gigabytes(available)} are"
            " available"
        )


def _norm(file: Path, weights: dict[str, Tensor], recipe: Recipe, exact: bool) -> str:
    """The normalizer that the weights are for.

    It is what their run says; else BN if they have statistics per channel; else the recipe's.
    """
    run = _run(file)
    norm: str = run.get("norm") or ("bn" if _per_channel(weights) else recipe.norm)
    if norm == "bn" and recipe.norm not in BATCH_WIDE and exact:
        raise ValueError(
            f"{file} has weights for norm='bn', and there is no exact conversion to "
            f"norm={recipe.norm!r}; pretrain with bgn run classification --norm {recipe.norm} ... "
            "and give the folder of that run"
        )
    if norm not in (recipe.norm, "bn"):
        raise ValueError(
            f"{file} has weights for norm={_quoted(norm)}, says the {RECIPE} beside it; expected "
            f"norm={recipe.norm!r}, as in the recipe, or 'bn' for {', '.join(BATCH_WIDE)}"
        )
    options = {"standardize": False} | ({} if norm == "bn" else {"center": "group"})
    for option, default in options.items():
        theirs, ours = run.get(option, default), getattr(recipe, option)
        if run and theirs != ours:
            raise ValueError(
                f"{file} has weights for {option}={_quoted(theirs)}, says the {RECIPE} beside it;"
                f" the recipe has {option}={ours}"
            )
    # groups of GN leave no trace in the weights; others show in the sizes of their statistics
    theirs, ours = run.get("groups"), recipe.groups or recipe.usual_groups
    if (
        norm == "gn"
        and "groups" in run
        and run.get("experiment", "classification") == "classification"
        and theirs != ours
    ):
        raise ValueError(
            f"{file} has weights for groups={_quoted(theirs)}, says the {RECIPE} beside it; "
            f"the recipe has groups={ours}"
        )
    return norm


def _quoted(value: object) -> str:
    return shorten(repr(value), 80)


def _run(file: Path) -> dict[str, Any]:
    """The recipe of the run that wrote a file, as plain values; nothing where no run did."""
    path = file.with_name(RECIPE)
    return reading.read_json(path) if path.exists() else {}


def _per_channel(weights: dict[str, Tensor]) -> bool:
    """Whether there are running statistics, in every layer as many as weights."""
    layers = [key[: -len(VAR)] for key in weights if key.endswith(VAR)]
    sizes = [
        (weights[layer + VAR].shape, weights[f"{layer}.weight"].shape)
        for layer in layers
        if f"{layer}.weight" in weights
    ]
    return (
        bool(layers)
        and len(sizes) == len(layers)
        and all(statistics == own for statistics, own in sizes)
    )


def _take_groups(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give BGN layers the numbers of groups of the file.

    The feature maps of its run decided on these.
    """
    for name, layer in normalizers(model).items():
        var = weights.get(name + VAR)
        if (
            isinstance(layer, bgn.BatchGroupNorm2d)
            and var is not None
            and var.dim() == 1
            and len(var)
        ):
            layer.resolve_groups(len(var))


def _fill(model: nn.Module, weights: dict[str, Tensor], norm: str, head: str, file: Path) -> None:
    """Put the weights in, if all but the head fit."""
    own = model.state_dict()
    wanted = {key: tuple(tensor.shape) for key, tensor in own.items() if not key.startswith(head)}
    name = type(model).__name__
    if len(wanted) in (0, len(own)):
        last = next(reversed(own)).partition(".")[0]
        extent = "none" if wanted else "all"
        raise ValueError(
            f"head={head!r} begins {extent} of the keys of {name}; expected '{last}.' or the like"
        )
    given = {key: tensor for key, tensor in weights.items() if not key.startswith(head)}
    problems = {
        # files from before torch 0.4.1 have no counters; only a cumulative average would need them
        "missing": [key for key in wanted if key not in given and not key.endswith(COUNTER)],
        "unexpected": [key for key in given if key not in wanted],
        "misshapen": [
            f"{key} {tuple(tensor.shape)} instead of {wanted[key]}"
            for key, tensor in given.items()
            if key in wanted and tuple(tensor.shape) != wanted[key]
        ],
    }
    said = "; ".join(f"{what}: {_few(keys)}" for what, keys in problems.items() if keys)
    if said:
        raise ValueError(
            f"{file} does not fit ({said}); expected the {len(wanted)} tensors that {name} "
            f"with norm={norm!r} has beside its head {head!r}{_other_groups(given, wanted)}"
        )
    model.load_state_dict({**own, **given})


def _other_groups(given: dict[str, Tensor], wanted: dict[str, tuple[int, ...]]) -> str:
    """What to do where nothing is wrong but the number of groups, the same in all layers."""
    wrong = [key for key in wanted if key not in given or tuple(given[key].shape) != wanted[key]]
    sizes = {given[key].numel() for key in wrong if key in given and key.endswith(STATISTICS)}
    alone = len(sizes) == 1 and all(key in given and key.endswith(STATISTICS) for key in wrong)
    return f"; these have groups={sizes.pop()}, so take as many" if alone else ""


def code(path: Path) -> str:
    """Hash of a file of weights; empty where there is none, which is refused when it is read."""
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        return ""
    about = file.stat()
    return _hash(str(file.resolve()), about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=32)
def _hash(path: str, modified: int, size: int) -> str:  # noqa: ARG001
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()[:16]


def _few(keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(keys[:3]) + more if keys else "nothing"
