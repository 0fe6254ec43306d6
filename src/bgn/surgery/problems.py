"""Why a conversion would lose something, and a short message for many layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from bgn.groups import nearest_groups
from bgn.surgery.job import Job
from bgn.surgery.modules import listed

MOST_LINES = 8


@dataclass(frozen=True)
class Problem:
    """One layer that cannot be converted.

    Layers with the same reason are reported together, with the different details of all of them.
    """

    layer: str
    reason: str
    detail: str = ""
    advice: str = ""


def report(problems: list[Problem]) -> str:
    """One line per reason.

    >>> print(report([Problem("a", "it is lazy"), Problem("b", "it is lazy"), Problem("c", "no")]))
      2 layers (a, b): it is lazy
      c: no
    """
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        alike.setdefault((problem.reason, problem.advice), []).append(problem)
    lines = []
    for (reason, advice), group in list(alike.items())[:MOST_LINES]:
        layers = list(dict.fromkeys(problem.layer for problem in group))
        details = ", ".join(dict.fromkeys(problem.detail for problem in group))
        who = layers[0] if len(layers) == 1 else f"{len(layers)} layers ({listed(layers)})"
        lines.append(f"  {who}: {reason}{details}{advice}")
    left = [problem for group in list(alike.values())[MOST_LINES:] for problem in group]
    if left:
        layers = list(dict.fromkeys(problem.layer for problem in left))
        lines.append(f"  {len(layers)} more layers for other reasons: {listed(layers)}")
    return "\n".join(lines)


def inexact(job: Job, label: str) -> Problem | None:
    """Why the output in eval mode would change."""
    if job.old.weight is not None and job.new.weight is None:
        return Problem(label, "affine=False would throw its weight and bias away")
    if job.carried is None:
        return None  # per-sample normalizers, or no running statistics: convert warns
    if not job.carried.exact:
        C, G = job.kind.num_features, job.target.num_groups
        if job.kind.num_groups != C:
            reason = f"its {job.kind.num_groups} groups cannot become {G} with the same output"
            return Problem(label, reason, advice=" (exact=False converts all the same)")
        return Problem(
            label,
            f"num_groups={G} neither divides the channels nor is a multiple of them;"
            " the nearest that fits: ",
            f"{nearest_groups(C, G)} for {C} channels",
            " (num_groups=lambda layer: bgn.nearest_groups(layer.num_features,"
            f" {G}) takes it; exact=False converts all the same)",
        )
    if not job.carried.is_identity and job.new.weight is None:
        reason = "it has no weight and bias to take up the difference of the statistics"
        return Problem(label, reason, advice="; affine=True adds them")
    return None


def tied(model: nn.Module, jobs: list[Job]) -> list[Problem]:
    """Layers that share a parameter but not their statistics cannot all keep their output."""
    owners: dict[int, set[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(name)
    found = []
    for job in jobs:
        if job.carried is not None:
            names = {n for p in job.old.parameters(recurse=False) for n in owners[id(p)]}
            others = sorted(names - {job.name})
            if others:
                reason = f"it shares a parameter with {', '.join(others)}, but not its statistics"
                found.append(Problem(job.name, reason))
    return found


def held_elsewhere(model: nn.Module, jobs: list[Job]) -> list[Problem]:
    """Layers that are also in a plain list, tuple, dict or attribute.

    The old layer would stay there, with changed weights and its old statistics.
    """
    names = {id(job.old): job.name for job in jobs}
    found = []
    for owner, module in model.named_modules():
        for key, value in module.__dict__.items():
            if key not in ("_modules", "_parameters", "_buffers"):
                reason = (
                    f"{owner or 'the model'} also holds it in its attribute {key}, outside of its"
                    " modules"
                )
                found += [
                    Problem(names[id(item)], reason) for item in _items(value) if id(item) in names
                ]
    return found


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]
