"""Colors of the page: enough contrast for text and lines, on light and on dark screens."""

import re

import pytest

from bgn_lab.report import palette, styles
from bgn_lab.report.page import HERE

TEXTS = "ink", "soft", "accent", "ahead", "behind", "bad"


@pytest.mark.parametrize("mode", palette.MODES)
@pytest.mark.parametrize("text", TEXTS)
def test_text_can_be_read_on_every_background(mode: str, text: str) -> None:
    colors = palette.colors(mode)
    for background in palette.BACKGROUNDS:
        found = palette.contrast(colors[text], colors[background])
        assert found >= palette.TEXT, f"{text} on {background}: {found:.2f}"


@pytest.mark.parametrize("mode", palette.MODES)
def test_lines_can_be_seen(mode: str) -> None:
    colors = palette.colors(mode)
    for name in (*palette.LINES, *palette.ramp(mode), "axis", "bad"):
        found = palette.contrast(colors[name], colors["panel"])
        assert found >= palette.GRAPHICS, f"{name}: {found:.2f}"


def test_both_modes_have_the_same_colors() -> None:
    assert list(palette.colors("light")) == list(palette.colors("dark"))
    assert {*palette.BACKGROUNDS, *palette.LINES, *TEXTS, "line", "axis"} == set(palette.LIGHT)


def test_contrast_is_that_of_the_standard() -> None:
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=1e-3)  # just fails


def test_the_style_sheet_uses_these_colors_alone() -> None:
    """A color that is written into it would escape the tests above, and dark mode."""
    sheet = (HERE / "report.css").read_text()
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsla?\(", sheet) == []
    used = {name for name in re.findall(r"var\(--([\w-]+)", sheet) if name != "c"}
    assert used <= set(palette.LIGHT)


def test_rows_of_a_sweep_have_colors_of_their_own() -> None:
    labels = ["BGN, paper's G", *(f"BGN, G = {2**i}" for i in range(10))]
    found = styles.styles(labels)
    assert len({own.color for own in found.values()}) == 11


def test_partners_are_told_by_dashes_and_a_second_g_by_hollow_marks() -> None:
    labels = ["BN", "BGN, G = 1", "BGN, G = 8", "BN + WS", "BGN + WS, G = 1", "BGN + renorm, G = 1"]
    found = styles.styles(labels)
    assert len(set(found.values())) == len(labels)
    assert found["BN + WS"].color == found["BN"].color
    assert found["BN + WS"].dashes == found["BGN + WS, G = 1"].dashes != found["BN"].dashes
    assert found["BGN, G = 8"] == found["BGN, G = 1"]._replace(hollow=True)


def test_two_normalizers_of_ones_own_differ() -> None:
    found = styles.styles(["BN", "my.norms:One", "my.norms:Two"])
    assert len(set(found.values())) == 3
