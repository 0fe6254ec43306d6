"""Pictures of experiments and reports: names are drawn as they are, and nothing is hidden."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from bgn_lab import paper
from bgn_lab.experiments.adaptation import figure as adaptation
from bgn_lab.experiments.fewshot import figure as fewshot
from bgn_lab.report import figures, text
from bgn_lab.report.collect import collect
from bgn_lab.report.comparison import compare
from bgn_lab.system import files
from tests.lab.report_runs import NAN, grid, make

NAMES = ["$\\frac$", "a$b", "\x1b[31mred\udcff", "日本", "a name that is very long and longer"]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("base", [0, 3])
def test_names_of_classes_do_not_break_the_picture_of_an_episode(base: int, tmp_path: Path) -> None:
    x = torch.randint(0, 255, (30, 1, 6, 6), dtype=torch.uint8)
    known = fewshot.choose(x, torch.arange(30) % 3 if base else torch.arange(30), NAMES[:3])
    assert len(known[1]) == base
    images = x[:20].view(5, 4, 1, 6, 6)
    given = torch.tensor([[0, 1, 2], [1, 1, 1], [2, 3, 4], [3, 3, 3], [4, 4, 4]])
    fewshot.picture(known, images[:, :1], images[:, 1:], given, NAMES, "$x", tmp_path / "one.png")
    seen = pixels(tmp_path / "one.png")
    for color in (fewshot.RIGHT, fewshot.WRONG):
        wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        assert (seen == wanted).all(axis=2).sum() > 50


def test_names_of_domains_do_not_break_the_picture_of_features(tmp_path: Path) -> None:
    both = torch.randn(12, 4), torch.randn(12, 4)
    labels = torch.arange(12) % 3, torch.arange(12) % 3
    adaptation.picture(
        {"before": both}, labels, (NAMES[0], NAMES[2]), "$\\frac$", tmp_path / "one.png"
    )
    assert pixels(tmp_path / "one.png").size


def test_texts_are_drawn_as_they_are(tmp_path: Path) -> None:
    for kind in ("png", "svg"):
        figure = Figure()
        axes = figure.subplots()
        axes.set_title("$\\frac$")
        axes.set_yticks([0, 1], ["$\\bad{", "b\x07"])
        axes.legend(handles=axes.plot([0], [1], label="$\\sqrt"))
        files.write_figure(tmp_path / f"one.{kind}", figure)
        assert axes.get_title() == "$\\frac$"


def test_runs_that_did_not_converge_are_in_the_picture(tmp_path: Path) -> None:
    rows = {
        ("bn", None): ((10.5, 10.3),),
        ("gn", None): ((9.8, 10.0),),
        ("ln", None): ((NAN, NAN),),
    }
    (found,) = compare(collect([grid(tmp_path, rows)]))
    ours = figures.accuracies(found).axes[0]
    crosses = [line for line in ours.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert sorted(float(line.get_ydata()[0]) for line in crosses) == pytest.approx([0, 9.9, 10.4])
    assert "10.4 ± 0.1 (did not converge: 2 of 2)" in text.markdown([found])
    low, high = ours.get_ylim()
    assert low < 9.9 < 10.4 < high


def test_what_did_not_converge_does_not_flatten_the_others(tmp_path: Path) -> None:
    rows = {("bn", None): ((80.0, 80.4), (81.0,)), ("gn", None): ((10.0, 9.8), (82.0,))}
    (found,) = compare(collect([grid(tmp_path, rows)]))
    ours = figures.accuracies(found).axes[0]
    files.render_figure(ours.figure, "svg")
    assert ours.get_ylim()[0] > 70
    assert [note.get_text() for note in ours.texts] == ["9.9"]


def test_ten_groups_can_be_distinguished(tmp_path: Path) -> None:
    for groups in (None, *(2**i for i in range(10))):
        make(tmp_path, 70.0, norm="bgn", groups=groups)
    (found,) = compare(collect([tmp_path]))
    assert found.labels == ("BGN, paper's G", *(f"BGN, G = {2**i}" for i in reversed(range(10))))
    styles = [figures._style(label, found.labels) for label in found.labels]
    assert len({(style["color"], style["marker"]) for style in styles}) == 11
    assert len({style["color"] for style in styles}) == 11


def test_paper_values_stand_beside_ours(tmp_path: Path) -> None:
    for size in (2, 128):
        make(tmp_path, 70.0, norm="bn", batch_size=size)
        for groups in (None, 512, 1):
            make(tmp_path, 71.0, norm="bgn", groups=groups, batch_size=size)
    make(tmp_path, 71.0, norm="bgn", groups=3, batch_size=2)
    (found,) = compare(collect([tmp_path]))
    header, rows = text.beside(found)
    assert header == ["measured / paper", "batch 2", "batch 128"]
    sweep = paper.GROUP_SWEEP
    assert rows == [
        ["BN", "70.0 / 66.5", "70.0 / 76.8"],
        ["BGN, paper's G", "71.0 / 76.1", "71.0 / 77.0"],
        [
            "BGN, G = 512",
            f"71.0 / {sweep.row('2')['512']:.1f}",
            f"71.0 / {sweep.row('128')['512']:.1f}",
        ],
        ["BGN, G = 1", f"71.0 / {sweep.row('2')['1']:.1f}", f"71.0 / {sweep.row('128')['1']:.1f}"],
    ]
    assert "not measured here" in text.beside_note(found)
