"""The ``bgn`` command."""

from __future__ import annotations

import difflib
import inspect
import sys
from itertools import pairwise
from typing import Any

import tyro
from rich.console import Console

import bgn
from bgn import checks
from bgn_lab.commands.compare import Compare
from bgn_lab.commands.get import Get
from bgn_lab.commands.plan import Plan
from bgn_lab.commands.report import Report
from bgn_lab.commands.run import (
    Adaptation,
    Adversarial,
    Classification,
    DartsSearch,
    FewShot,
    ManasSearch,
    NasTrain,
)
from bgn_lab.commands.tune import Tune
from bgn_lab.system.signals import INTERRUPTED, REQUEUE, Interrupted
from bgn_lab.training import workers

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
            "bgn run classification --preset paper-imagenet --root imagenet --norm bgn --batch-size 2",
            "torchrun --nproc-per-node 8 -m bgn_lab run classification --preset paper-imagenet --root imagenet --norm bgn",
        ),
    ),
    "run adversarial": (
        Adversarial,
        "adversarial training, robust and clean accuracy",
        (
            "bgn run adversarial --norm bgn",
            "bgn run adversarial --preset paper --norm bgn --groups 512",
            "bgn run adversarial --preset laptop --data cifar10 --norm bn --attack-steps 0",
        ),
    ),
    "run fewshot": (
        FewShot,
        "few-shot learning by imprinted weights",
        (
            "bgn run fewshot --norm bgn",
            "bgn run fewshot --preset laptop --data mini_imagenet84.npz --norm gn",
            "bgn run fewshot --preset paper --data mini-imagenet --norm bgn --activation swish",
        ),
    ),
    "run adaptation": (
        Adaptation,
        "domain adaptation with normalisers per domain",
        (
            "bgn run adaptation --preset laptop --norm bgn",
            "bgn run adaptation --preset laptop-office --data office31_128.npz --task da --weights mobilenet_v2.pth --norm bgn",
            "bgn run adaptation --preset paper --data office31 --task da --weights resnet50.pth --norm bgn",
            "bgn run adaptation --data office31 --task wd --model resnet18 --weights runs/pretrained-gn --norm gn",
        ),
    ),
    "run darts-search": (
        DartsSearch,
        "architecture search by gradients",
        (
            "bgn run darts-search --preset laptop --norm bgn --out runs/darts",
            "bgn run darts-search --preset paper --norm bgn --order second",
        ),
    ),
    "run manas-search": (
        ManasSearch,
        "architecture search by agents",
        (
            "bgn run manas-search --preset laptop --norm bgn --out runs/manas",
            "bgn run manas-search --preset paper --norm bgn --credit weights",
        ),
    ),
    "run nas-train": (
        NasTrain,
        "train the network of a genotype",
        (
            "bgn run nas-train --preset laptop --norm bgn",
            "bgn run nas-train --preset paper --genotype DARTS_V2 --norm bgn",
            "bgn run nas-train --preset laptop --genotype runs/found/genotype.json --norm gn",
        ),
    ),
    "tune": (
        Tune,
        "the normaliser, its G and its learning rate for your data, by short runs on validation images",
        (
            "bgn tune --data photos --model resnet18 --image-size 128 --batch-size 2",
            "bgn tune --batch-size 4 --epochs 18 --seeds 3 --out runs/mine",
        ),
    ),
    "data get": (
        Get,
        "fetch a data set",
        ("bgn data get cifar10", "bgn data get cifar10 --root data/cifar10"),
    ),
    "report": (
        Report,
        "tables, pictures and a page from folders of runs",
        ("bgn report runs",),
    ),
    "plan": (
        Plan,
        "what a grid of runs would take: hours, traffic, cost",
        (
            "bgn plan",
            "bgn plan --device gpu:rate=1000,overhead=20,price=2.5 --device old:2=50,32=200,128=700,price=0.8",
            "bgn plan --norms bn bgn --batch-sizes 2 8 --model resnet18 --epochs 90 --save steps.json",
            "bgn plan --steps steps.json --price 1.5 --workers 8 --devices 4 --latency-us 30 --bandwidth-gb 12",
        ),
    ),
}


def overview() -> str:
    """What ``bgn --help`` prints."""
    width = max(map(len, COMMANDS))
    lines = [
        "The normalisers of the paper, compared. `bgn COMMAND --help` explains a command.",
        "",
        "commands:",
    ]
    lines += [f"  bgn {name:<{width}}  {what}" for name, (_, what, _) in COMMANDS.items()]
    lines += [f"  bgn {'info':<{width}}  versions, and which backend is at work", "", "examples:"]
    lines += [f"  {examples[0]}" for _, _, examples in COMMANDS.values()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code: 0, 1 if runs failed, 2 for bad input, 130 after Ctrl-C, 75 after SIGTERM."""
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
    words = words[len(name.split()) :]
    try:
        command = tyro.cli(
            kind, prog=f"bgn {name}", args=words, default=_preset(kind, words),
            description=f"{inspect.cleandoc(kind.__doc__)}\n\nexamples:\n" + "\n".join(f"  {example}" for example in examples),
        )  # fmt: skip
        code: int = command(console)
    except (ValueError, TypeError, OSError) as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return _interrupted(console, INTERRUPTED)
    except Interrupted as stop:
        return _interrupted(console, stop.code)
    except RuntimeError as error:
        if not workers.is_lost_connection(error):
            raise
        return _refuse("lost the other processes", 1)
    return code


def _preset(kind: Any, words: list[str]) -> Any:
    """The command with the defaults of the preset that the words name, if they do."""
    presets = getattr(kind, "PRESETS", {})
    named = [
        word.partition("=")[2] or after
        for word, after in pairwise([*words, ""])
        if word.partition("=")[0] == "--preset"
    ]
    if not named or not presets:
        return None
    checks.one_of("preset", named[-1], tuple(presets))
    return kind(recipe=presets[named[-1]])


def _interrupted(console: Console, code: int) -> int:
    if workers.rank() == 0:
        why = "asked to end" if code == REQUEUE else "interrupted"
        console.print(f"\n{why}: what is done is kept, the same command goes on from there")
    return code


def _refuse(why: str, code: int = 2) -> int:
    who = f"process {workers.rank()}: " if workers.is_launched() else ""
    Console(stderr=True).print(f"{who}error: {why}", highlight=False, markup=False, soft_wrap=True)
    return code
