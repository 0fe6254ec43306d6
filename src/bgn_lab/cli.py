"""The ``bgn`` command. Commands, and torch with them, are imported when they are needed."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from bgn_lab import experiments

if TYPE_CHECKING:
    from rich.console import Console

DISTRIBUTION = "batch-group-norm"
HELP = ("-h", "--help", "help")


class Command(NamedTuple):
    """A command: module:class (none where options depend on the experiment), a line, examples."""

    place: str
    summary: str
    examples: tuple[str, ...]


COMMANDS = {
    "compare": Command(
        "",
        "normalizers at several batch sizes, side by side",
        (
            "bgn compare",
            "bgn compare --norms bn gn bgn --batch-sizes 2 4 --groups paper 1 8 32 --epochs 5"
            " --seeds 3 --out runs/mine",
            "bgn compare --data photos --model resnet18 --image-size 128",
            "bgn compare --preset laptop-table-2 --data mini100_32.npz",
            "bgn compare --preset paper-table-1 --root imagenet --device cuda",
            "bgn compare --experiment adaptation --preset paper --data office31"
            " --weights resnet50-{norm}.pth",
        ),
    ),
    **{
        f"run {name}": Command("", entry.summary, entry.examples)
        for name, entry in experiments.REGISTRY.items()
    },
    "tune": Command(
        "bgn_lab.commands.tune:Tune",
        "find normalizer, G and learning rate for your data",
        (
            "bgn tune --data photos --model resnet18 --image-size 128 --batch-size 2",
            "bgn tune --batch-size 4 --epochs 18 --seeds 3 --out runs/mine",
        ),
    ),
    "export": Command(
        "bgn_lab.commands.export:Export",
        "a trained network as ONNX, .pt2 or safetensors",
        (
            "bgn export runs/mine --to model.onnx",
            "bgn export runs/mine --to model.pt2 --compiled",
            "bgn export runs/mine --to weights.safetensors --no-fold",
        ),
    ),
    "resume": Command(
        "bgn_lab.commands.resume:Resume",
        "begin or resume the run of a folder",
        ("bgn resume runs/compare/runs/fashion-mnist-resnet20-bn-b2-s0-1a2b3c4d",),
    ),
    "data get": Command(
        "bgn_lab.commands.get:Get",
        "fetch a data set",
        ("bgn data get cifar10", "bgn data get cifar10 --root data/cifar10"),
    ),
    "report": Command(
        "bgn_lab.commands.report:Report",
        "tables, pictures and a page from folders of runs",
        ("bgn report runs",),
    ),
    "plan": Command(
        "bgn_lab.commands.plan:Plan",
        "what a grid of runs would take: hours, traffic, cost",
        (
            "bgn plan --norms bn bgn --batch-sizes 2 8 --epochs 30",
            "bgn plan --preset paper-table-2 --processes 8 --times gpu:rate=1000,overhead=20"
            " --price 2.5 --latency-us 30 --bandwidth-gb 10",
            "bgn plan --data photos --model resnet18 --image-size 128 --norms bn bgn+ws --jobs 4",
        ),
    ),
    "info": Command(
        "bgn_lab.commands.info:Info", "versions, and which backend is at work", ("bgn info",)
    ),
    "completion": Command(
        "bgn_lab.commands.completion:Completion",
        "a script that makes the Tab key complete commands and options",
        (
            "bgn completion bash > ~/.local/share/bash-completion/completions/bgn",
            "bgn completion zsh > ~/.bgn-completion.zsh  # source it in ~/.zshrc",
            "bgn completion fish > ~/.config/fish/completions/bgn.fish",
        ),
    ),
}


START = """\
Compare normalizers on images that come with the package, or on yours:
  bgn compare
  bgn compare --data photos --model resnet18 --image-size 128

Convert, train and fold your own model, in Python:
  import bgn
  bgn.convert(model, batch_size=2)  # chooses, says why; pretrained: same output
  plain = bgn.fold(model.eval())    # trained: a copy of plain convolutions

Run the experiments of the paper, small or as they were:
  bgn compare --preset laptop-table-2
  bgn compare --preset paper-table-2 --root imagenet --device cuda

All commands: bgn --help. One of them: bgn compare --help."""
WIDTH = 80  # columns that everything fits but commands to paste


def overview(start: str = "") -> str:
    """What ``bgn --help`` prints; or that of the commands that begin with a word."""
    shown = {name: own for name, own in COMMANDS.items() if not start or name.split()[0] == start}
    summaries = {name: own.summary for name, own in shown.items()}
    width = max(map(len, summaries))
    indent = " " * (width + 8)
    lines = [
        "Compare the normalizers of the paper. `bgn COMMAND --help` explains a command.",
        "",
        "commands:",
        *(
            textwrap.fill(f"  bgn {name:<{width}}  {what}", WIDTH, subsequent_indent=indent)
            for name, what in summaries.items()
        ),
        "",
        "examples:",
        *(f"  {own.examples[0]}" for own in shown.values()),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    The code is 0 on success, 1 if runs failed, 2 for bad input, 130 after Ctrl-C, 75 after SIGTERM
    or SIGHUP.
    """
    words = sys.argv[1:] if arguments is None else arguments
    starts = {name.split()[0] for name in COMMANDS if " " in name}
    if not words:
        print(START)
        return 0
    if words[0] in HELP:
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"bgn {_version()}")
        return 0
    if words[0] in starts and (not words[1:] or words[1] in HELP):
        print(overview(words[0]))
        return 0
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    if name is None:
        return _no_command(words, starts)
    return _run(name, words[len(name.split()) :])


def _no_command(words: list[str], starts: set[str]) -> int:
    typed = " ".join(word for word in words[:2] if not word.startswith("-"))
    near = difflib.get_close_matches(typed, COMMANDS, n=1, cutoff=0.4)
    hint = f"; did you mean `bgn {near[0]}`?" if near else ""
    message = f"there is no command `bgn {typed}`{hint}"
    if words[0].startswith("-"):
        message = f"{words[0]} comes before a command; expected one first, as in `bgn compare`"
    listed = f"bgn {words[0]} --help" if words[0] in starts else "bgn --help"
    print(f"error: {message}\n`{listed}` lists all commands.", file=sys.stderr)
    return 2


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # from a folder of sources
        import bgn

        return bgn.__version__


def _run(name: str, words: list[str]) -> int:
    from rich.console import Console

    from bgn_lab.system.signals import INTERRUPTED, Interrupted
    from bgn_lab.training import workers

    class Output(Console):
        def on_broken_pipe(self) -> None:  # rich would end with code 1, that of failed runs
            raise

    console = Output()
    try:
        code: int = _parse(name, words)(console)
    except BrokenPipeError:
        raise
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _refuse(_in_options(why, name, words))
    except (ValueError, TypeError) as error:
        return _refuse(_in_options(str(error), name, words))
    except KeyboardInterrupt:
        return _interrupted(console, INTERRUPTED)
    except Interrupted as stop:
        return _interrupted(console, stop.code)
    except RuntimeError as error:
        if not workers.is_lost_connection(error):
            raise
        return _refuse("lost the other processes", 1)
    return code


def _parse(name: str, words: list[str]) -> Any:
    """The command with its options."""
    from bgn_lab.commands import compare, options, parsing, plan, run

    examples = "examples:\n" + "\n".join(f"  {example}" for example in COMMANDS[name].examples)
    first, _, experiment = name.partition(" ")
    if first == "run":
        return run.parse(experiment, words, examples)
    if first == "compare":
        return compare.parse(words, examples)
    if first == "plan":
        return plan.parse(words, examples)
    command = _command(name)
    about = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{examples}"
    return options.made(command, parsing.parse(options.of(command, words), name, words, about))


def options_of(name: str, words: Sequence[str] = ()) -> type:
    """The dataclass with the options of a command; some depend on other words of the line."""
    from bgn_lab.commands import compare, options, plan, run

    first, _, experiment = name.partition(" ")
    if first == "run":
        return run.options_of(experiment, list(words))
    if first == "compare":
        return compare.options_of(list(words))
    if first == "plan":
        return plan.options_of(list(words))
    return options.of(_command(name), list(words))


def _command(name: str) -> type:
    """The dataclass that is a command."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    kind: type = getattr(importlib.import_module(module), attribute)
    return kind


def _in_options(message: str, name: str, words: list[str]) -> str:
    """A message as the command line has the names in it, with where to look them up."""
    from bgn_lab.commands import parsing

    try:
        kind = options_of(name, words)
    except ValueError:  # of an experiment or a preset that there is not
        kind = options_of(name)
    told = parsing.with_options(message, kind)
    if told.startswith("there is no option"):
        return f"{told}\n`bgn {name} --help` lists the options."
    return told


def _interrupted(console: Console, code: int) -> int:
    from bgn_lab.system.signals import STOPPED
    from bgn_lab.training import workers

    if workers.rank() == 0:
        console.print(f"\n{STOPPED}")
    return code


def _refuse(why: str, code: int = 2) -> int:
    from rich.console import Console

    from bgn_lab.system.printable import printable
    from bgn_lab.training import workers

    why = "\n".join(map(printable, why.split("\n")))  # it may quote files of others
    who = f"process {workers.rank()}: " if workers.is_launched() else ""
    Console(stderr=True).print(f"{who}error: {why}", highlight=False, markup=False, soft_wrap=True)
    return code
