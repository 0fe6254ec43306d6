"""What the command line says of words that it does not understand, in a few lines."""

import textwrap
from pathlib import Path

import pytest

from bgn_lab import cli
from bgn_lab.commands import compare, parsing, plan, run
from bgn_lab.commands.tune import Tune

LINES, WIDTH = 5, 80


def said(
    words: str, capsys: pytest.CaptureFixture[str], where: Path, patch: pytest.MonkeyPatch
) -> str:
    """The error of a command line, which writes nothing."""
    patch.chdir(where)
    assert cli.main(words.split()) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert list(where.iterdir()) == [], "nothing is written"
    return text


CASES = {
    # options that there are not, and values too many
    "compare --batch-size 2": "there is no option --batch-size; did you mean --batch-sizes?",
    "compare --scedule cosine": "there is no option --scedule; did you mean --schedule?",
    "run adversarial --atack-steps 2": "did you mean --attack-steps?",
    "tune --epoch 3": "there is no option --epoch; did you mean --epochs?",
    "plan --bandwidth 3": "did you mean --bandwidth-gb?",
    "compare foo": "'foo' is too much",
    "compare --epochs 1 2": "'2' is too much after --epochs, which takes one value",
    "compare --amp yes": "'yes' is too much after --amp, which takes no value",
    # values of the wrong kind
    "compare --epochs two": "--epochs two is not accepted; expected a whole number",
    "compare --lr fast": "--lr fast is not accepted; expected a number",
    "compare --epochs": "--epochs needs a value; expected a whole number",
    "compare --limit None": "--limit None is not accepted; expected a whole number",
    "compare --batch-sizes 2 x 8": "--batch-sizes x is not accepted; expected a whole number",
    "compare --batch_sizes 2 x": "--batch-sizes x is not accepted",
    "compare --epochs=two": "--epochs two is not accepted",
    "compare --schedule cosin": "expected cosine, steps, constant; did you mean cosine?",
    "compare --schedule": "--schedule needs a value; expected cosine, steps, constant",
    # values that make no sense
    "compare --norms bn bgm": "--norms 'bgm' is not known; accepted: bn, in, ln, gn, pn, gbgn, bgn;"
    " did you mean 'bgn'?",
    "compare --norms bgn+wss": "--norms 'bgn+wss' has the partner 'wss'",
    "compare --norms": "--norms is empty; expected at least one",
    "compare --model resnet51": "--model 'resnet51' is not known",
    "compare --data fashion-mnits": "did you mean 'fashion-mnist'?",
    "compare --groups paper many": "--groups 'many' is not accepted; expected positive numbers",
    "compare --norms bn --groups many": "--groups 'many' is not accepted",
    "compare --groups 5000": "--groups 5000 exceeds the 3136 features",
    "compare --jobs 0": "--jobs 0 is not positive",
    "compare --batch-sizes 0": "--batch-sizes 0 is not positive; expected an int of at least 1",
    "compare --batch-sizes 100000": "--batch-sizes 100000 times --simulate-workers 8 times"
    " --accumulate 1 exceeds the 3240 training images",
    "compare --nesterov --momentum 0": "--nesterov needs a momentum above 0; --momentum 0",
    "compare --preset lptop": "did you mean 'laptop'?",
    "compare --preset paper-table-2": "needs --root",
    "compare --experiment adversrial": "--experiment 'adversrial' is not known",
    "compare --experiment darts-search": "--experiment 'darts-search' is a search",
    "run classification --norm batchnorm": "--norm 'batchnorm' is not known",
    "run classification --data imagenet": "--data 'imagenet' needs --root",
    "run classification --device foo": "--device 'foo' is not known; expected auto",
    "run classification --model nets:small": "there is no module 'nets'",
    "run adversarial --preset papr": "did you mean 'paper'?",
    "run adaptation --warmup 2": "--warmup 2.0 has no meaning for --schedule 'inverse'",
    "tune --norm bn": "expected no --norm",
    "plan --norms bn+wz": "--norms 'bn+wz' has the partner 'wz'",
    # what has no option before it
    "data get": "NAME is missing: cifar10",
    "data get cifar100": "NAME 'cifar100' is not known; accepted: cifar10; did you mean 'cifar10'?",
    "completion": "SHELL is missing: bash, zsh or fish",
    "completion fsh": "SHELL 'fsh' is not known; accepted: bash, zsh, fish; did you mean 'fish'?",
    "report": "FOLDERS is empty; expected at least one folder of runs",
    # commands
    "compere": "there is no command `bgn compere`; did you mean `bgn compare`?",
    "run clasification": "did you mean `bgn run classification`?",
    "--epochs 3": "--epochs comes before a command",
}


@pytest.mark.parametrize("words", CASES)
def test_errors_name_the_option_and_are_short(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = said(words, capsys, tmp_path, monkeypatch)
    assert CASES[words] in " ".join(text.split())
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, WIDTH)]
    assert len(lines) <= LINES


def test_an_option_that_there_is_not_says_where_all_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said("run fewshot --nothing-like-it", capsys, tmp_path, monkeypatch)
    assert text == (
        "error: there is no option --nothing-like-it\n`bgn run fewshot --help` lists the options.\n"
    )


def test_options_as_a_shell_sees_them() -> None:
    found = {name: own for own in parsing.options(compare.options_of([])) for name in own.names}
    assert found["--norms"].takes == "several"
    assert found["--no-amp"] is found["--amp"]
    assert found["--schedule"].values == ("cosine", "steps", "constant")
    assert [found[f"--{name}"].kind for name in ("out", "epochs", "lr", "data")] == [
        "path", "whole", "number", "text",
    ]  # fmt: skip
    assert all(own.help for own in found.values())
    assert "--test" not in found
    for kind in (plan.options_of([]), Tune, run.options_of("nas-train", [])):
        assert all(own.help for own in parsing.options(kind))


def test_a_message_keeps_what_is_no_option() -> None:
    assert (
        parsing.with_options("file=/data=x has layers=3", plan.PlanOptions)
        == "file=/data=x has layers=3"
    )
