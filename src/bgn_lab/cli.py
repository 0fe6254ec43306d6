"""The ``bgn`` command."""

from __future__ import annotations

import difflib
import inspect
import sys
from typing import Any

import tyro
from rich.console import Console

import bgn
from bgn_lab.commands.classification import Classification
from bgn_lab.commands.compare import Compare
from bgn_lab.commands.get import Get
from bgn_lab.commands.report import Report
from bgn_lab.training.loop import Interrupted

# name: (what it is, examples)
COMMANDS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "compare": (
        Compare,
        "every normaliser at every batch size: table, pictures, page",
        (
            "bgn compare",
            "bgn compare --norms bn gn bgn --batch-sizes 2 4 --groups paper 1 8 32 --epochs 5 --seeds 3 --out runs/mine",
            "bgn compare --data photos --model resnet18 --image-size 128",
        ),
    ),
    "run classification": (
        Classification,
        "one training run, resumable",
        (
            "bgn run classification --norm bgn --batch-size 2",
            "bgn run classification --data cifar10 --model resnet20 --norm gn --epochs 30 --out runs/gn",
            "bgn run classification --data imagenet --root imagenet --model resnet50 --epochs 120 --schedule steps --device cuda",
        ),
    ),
    "data get": (Get, "fetch a data set", ("bgn data get cifar10", "bgn data get cifar10 --root data/cifar10")),
    "report": (
        Report,
        "tables, pictures and a page from folders of runs",
        ("bgn report runs",),
    ),
}


def overview() -> str:
    """What ``bgn --help`` prints."""
    width = max(map(len, COMMANDS))
    lines = ["The normalisers of the paper, compared. `bgn COMMAND --help` explains a command.", "", "commands:"]
    lines += [f"  bgn {name:<{width}}  {what}" for name, (_, what, _) in COMMANDS.items()]
    lines += [f"  bgn {'info':<{width}}  versions, and which backend is at work", "", "examples:"]
    lines += [f"  {examples[0]}" for _, _, examples in COMMANDS.values()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code: 0, 1 if runs failed, 2 for bad input, 130 after Ctrl-C."""
    words = sys.argv[1:] if arguments is None else arguments
    console = Console()
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words == ["info"]:
        print(bgn.info())
        return 0
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    if name is None:
        said = " ".join(word for word in words[:2] if not word.startswith("-"))
        near = difflib.get_close_matches(said, [*COMMANDS, "info"], n=1, cutoff=0.4)
        hint = f"; did you mean `bgn {near[0]}`?" if near else ""
        return _refuse(f"there is no command `bgn {said}`{hint}\n\n{overview()}")
    kind, _, examples = COMMANDS[name]
    try:
        command = tyro.cli(
            kind, prog=f"bgn {name}", args=words[len(name.split()) :],
            description=f"{inspect.cleandoc(kind.__doc__)}\n\nexamples:\n" + "\n".join(f"  {example}" for example in examples),
        )  # fmt: skip
        code: int = command(console)
    except (ValueError, TypeError, OSError) as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, Interrupted):
        console.print("\ninterrupted: what is done is kept, the same command goes on from there")
        return 130
    return code


def _refuse(why: str) -> int:
    Console(stderr=True).print(f"error: {why}", highlight=False, markup=False, soft_wrap=True)
    return 2
