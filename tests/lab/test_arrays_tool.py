"""tools/arrays.py: JPEGs of an .npz file as arrays that the laboratory reads."""

import re
from pathlib import Path
from typing import Any

import pytest

from bgn_lab.data import load
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from tests.lab import scripts
from tests.lab.test_class_folders import packed


@pytest.fixture(scope="module")
def script() -> Any:
    return scripts.load("arrays")


def test_arrays_that_the_laboratory_reads(script: Any, tmp_path: Path) -> None:
    script.main(
        [
            str(packed(tmp_path / "images.npz")),
            str(tmp_path / "new" / "out.npz"),
            "--train",
            "4",
            "--size",
            "8",
        ]
    )
    data = load(Recipe(data=str(tmp_path / "new" / "out.npz"), validation=0))
    assert (data.classes, data.shape) == (("cow", "ant"), (3, 8, 8))
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([0] * 4 + [1] * 4, [0] * 2 + [1] * 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train", "6"], "train=6 leaves no test images of n03"),
        (["--train", "0"], "train=0 is not positive"),
        (["--split", "else"], "split='else' is not in .*expected one of train, val"),
    ],
)
def test_bad_input(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        script.main([str(packed(tmp_path / "images.npz")), str(tmp_path / "out.npz"), *words])
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out.npz").exists()
