"""What the Tab key offers, asked of the shells themselves where they are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from bgn_lab import cli
from bgn_lab.commands import completion, parsing

BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_bgn; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
compadd() {{ shift; print -rl -- "$@" }}
_files() {{ print -rl -- *(N) }}
source {script}
words=({words}); CURRENT=$#words
_bgn
"""
FISH = """
source {script}
complete -C "{line}" | string replace -r '\\t.*' ''; true
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    commands = completion.commands()
    return {shell: write(commands) for shell, write in completion.SHELLS.items()}


@pytest.fixture(params=completion.SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"needs {request.param}")
    return str(request.param)


def offered(shell: str, scripts: dict[str, str], line: str, where: Path) -> set[str]:
    """The words that a shell offers at the end of a line."""
    script = where / f"bgn.{shell}"
    script.write_text(scripts[shell])
    *before, last = line.split(" ")
    words = " ".join([*before, f"'{last}'"])
    code = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
    command = [shell, *{"bash": ["--norc"], "zsh": ["-f"], "fish": ["-N"]}[shell], "-c"]
    found = subprocess.run(
        [*command, code.format(script=script, words=words, line=line)],
        capture_output=True, text=True, timeout=60, check=True, cwd=where,
    )  # fmt: skip
    assert found.stderr == ""
    # zsh is given all words, of which it chooses itself
    return {word for word in found.stdout.split() if word.startswith(last)}


def test_commands(shell: str, scripts: dict[str, str], tmp_path: Path) -> None:
    first = {name.split()[0] for name in cli.COMMANDS} | {"info"}
    assert offered(shell, scripts, "bgn ", tmp_path) == first
    assert offered(shell, scripts, "bgn co", tmp_path) == {"compare", "completion"}
    assert "classification" in offered(shell, scripts, "bgn run ", tmp_path)
    assert "cifar10" in offered(shell, scripts, "bgn data get ", tmp_path)
    assert {"bash", "zsh", "fish"} <= offered(shell, scripts, "bgn completion ", tmp_path)


def test_options_and_their_values(shell: str, scripts: dict[str, str], tmp_path: Path) -> None:
    options = offered(shell, scripts, "bgn compare --", tmp_path)
    known = parsing.options(cli.options_of("compare"))
    assert options == {name for option in known for name in option.names} | {"--help"}
    assert offered(shell, scripts, "bgn compare --batch", tmp_path) == {"--batch-sizes"}
    schedules = offered(shell, scripts, "bgn compare --epochs 3 --schedule ", tmp_path)
    assert schedules == {"cosine", "steps", "constant"}
    assert "bgn+ws" in offered(shell, scripts, "bgn compare --norms bgn", tmp_path)
    presets = offered(shell, scripts, "bgn run adversarial --preset ", tmp_path)
    assert presets == {"laptop", "paper"}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_further_values_of_an_option(shell: str, scripts: dict[str, str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    assert "gn" in offered(shell, scripts, "bgn compare --norms bn bgn ", tmp_path)
    after = offered(shell, scripts, "bgn compare --schedule cosine ", tmp_path)
    assert "--epochs" in after
    assert "steps" not in after


def test_files(shell: str, scripts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for line in ("bgn compare --out ", "bgn report "):
        found = {word.rstrip("/") for word in offered(shell, scripts, line, tmp_path)}
        assert "results" in found


def test_printing_them(capsys: pytest.CaptureFixture[str], scripts: dict[str, str]) -> None:
    for name, script in scripts.items():
        assert cli.main(["completion", name]) == 0
        assert capsys.readouterr().out == script
