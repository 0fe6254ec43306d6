"""The page of a report in a browser: on a phone and a desk, by keyboard, dark, without scripts."""

from pathlib import Path
from typing import Any

import pytest

from bgn_lab import paper
from bgn_lab.report import palette
from bgn_lab.report.collect import collect
from bgn_lab.report.write import write
from tests.lab.browser import BROWSER, look
from tests.lab.report_runs import grid, make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome"),
]
PHONE, DESK = (390, 844), (1280, 800)
Seen = tuple[tuple[int, int], list[dict[str, Any]]]

MEASURE = """
const measure = () => ({
  width: page.innerWidth, needed: root.scrollWidth,
  verdict: box(one(".verdict")),
  tables: all("table").filter(e => e.checkVisibility()).map(box),
  scrolled: all(".wide").map(e => e.scrollWidth - e.clientWidth),
  pictures: all("figure > svg").map(box),
  letters: all("figure > svg text").map(e => e.getBoundingClientRect().height),
  outside: all("body *").filter(e => box(e)[2] > page.innerWidth + 1)
    .map(e => e.outerHTML.slice(0, 80)),
  small: Math.min(...all("td, th, p, small").map(e => parseFloat(style(e).fontSize))),
  targets: all(".key label, .key button, .modes label").map(box).map(b => b[3] - b[1]),
});
const closed = measure();
all("details").forEach(e => e.open = true);
return [closed, measure()];
"""

# text whose color is too near to what is behind it
CONTRAST = """
const parts = color => color.match(/[\\d.]+/g).map(Number);
const luminance = color => parts(color).slice(0, 3).map(p => p / 255)
  .map(p => p <= .04045 ? p / 12.92 : ((p + .055) / 1.055) ** 2.4)
  .reduce((sum, p, i) => sum + [.2126, .7152, .0722][i] * p, 0);
const behind = e => {
  for (; e; e = e.parentElement) {
    const color = style(e).backgroundColor, alpha = parts(color)[3] ?? 1;
    if (alpha === 1) return color;
  }
  return "rgb(255, 255, 255)";
};
const contrast = (a, b) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + .05) / (low + .05);
};
all("details").forEach(e => e.open = true);
one(".key input").checked = false;
const faint = [];
for (const e of all("body *")) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.checkVisibility() || e.closest("script, style")) continue;
  const color = e.closest("svg") ? style(e).fill : style(e).color;
  const found = contrast(color, behind(e));
  if (found < 4.5) faint.push([e.outerHTML.slice(0, 60), color, behind(e), found]);
}
return {faint, page: style(page.document.body).backgroundColor};
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("page")
    write(collect([grid(here / "runs")]), here)
    return here


@pytest.fixture(scope="module", params=[PHONE, DESK], ids=["phone", "desk"])
def seen(request: pytest.FixtureRequest, folder: Path) -> Seen:
    """The screen and what is measured on it: as the page opens, and with everything unfolded."""
    return request.param, look(folder, MEASURE, request.param[0])


def test_nothing_is_wider_than_the_screen(seen: Seen) -> None:
    (width, _), states = seen
    for state in states:
        assert state["width"] == width  # the screen is what it should be
        assert state["needed"] <= width
        assert state["outside"] == []


def test_tables_need_no_scrolling(seen: Seen) -> None:
    for state in seen[1]:
        assert max(state["scrolled"]) <= 0


def test_tables_and_pictures_are_there(seen: Seen) -> None:
    (width, _), (closed, unfolded) = seen
    visible = [(right - left, bottom - top) for left, top, right, bottom in closed["tables"]]
    assert len(visible) == 5  # measured, beside the paper, what each is, two of the paper
    assert all(w > 0.35 * width and h > 150 for w, h in visible)
    assert all(right - left > 0.35 * width for left, _, right, _ in unfolded["tables"])
    assert len(closed["pictures"]) == 2 + 2 * 3  # accuracy and the paper's; curves by batch size
    lefts = {round(left) for left, _, _, _ in closed["pictures"]}
    assert (len(lefts) == 1) == (width < 640)  # panels below each other on a phone
    for left, _, right, _ in closed["pictures"]:
        assert right - left > (0.8 if width < 640 else 0.2) * width


def test_the_verdict_is_on_the_first_screen(seen: Seen) -> None:
    (_, height), (closed, _) = seen
    _, top, _, bottom = closed["verdict"]
    assert top < height / 4
    assert bottom < height
    assert closed["tables"][0][1] < height, "the table begins there, too"


def test_text_is_large_enough_to_read(seen: Seen) -> None:
    assert seen[1][0]["small"] >= 10
    assert min(seen[1][0]["letters"]) >= 9


def test_what_one_presses_is_large_enough(seen: Seen) -> None:
    """24 pixels (WCAG 2.5.8); the heads of tables are text, which may be lower."""
    assert min(seen[1][0]["targets"]) >= 24


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_has_enough_contrast(dark: bool, folder: Path) -> None:
    found = look(folder, CONTRAST, dark=dark)
    assert found["faint"] == []
    wanted = palette.DARK if dark else palette.LIGHT
    assert found["page"] == _rgb(wanted["page"])


def _rgb(color: str) -> str:
    return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_the_switch_of_modes(folder: Path) -> None:
    script = """
    const color = () => style(page.document.body).backgroundColor, found = [color()];
    for (const mode of ["dark", "light", "auto"]) {
      one(`input[value=${mode}]`).click();
      found.push(color());
    }
    return found;
    """
    light, dark = _rgb(palette.LIGHT["page"]), _rgb(palette.DARK["page"])
    assert look(folder, script) == [light, dark, light, light]
    assert look(folder, script, dark=True) == [dark, dark, light, dark]


def test_tables_are_sorted_by_a_button_in_the_head(folder: Path) -> None:
    script = """
    const table = one(".measured"), head = table.tHead.rows[0].cells;
    const state = () => [...head].map(h => h.getAttribute("aria-sort"));
    const rows = column => [...table.tBodies[0].rows].map(
      r => r.cells[column].firstChild.textContent.trim());
    const before = rows(0), found = [];
    for (const column of [1, 1, 1, 0]) {
      const button = head[column].querySelector("button");
      button.focus();
      found.push([page.document.activeElement === button, button.tabIndex]);
      button.click();
      found.push([state(), rows(0), rows(column)]);
    }
    return [before, found];
    """
    before, (focus, down, _, up, _, none, _, names) = look(folder, script)
    assert focus == [True, 0]
    assert down[0] == [None, "descending", None, None]
    values = [float(text.split()[0]) for text in down[2]]
    assert values == sorted(values, reverse=True)
    assert up[0] == [None, "ascending", None, None]
    assert up[1] == down[1][::-1]
    assert none == [[None] * 4, before, none[2]]
    assert names[0] == ["ascending", None, None, None]
    assert names[1] == sorted(before, key=str.lower)


def test_what_has_no_number_comes_last(tmp_path: Path) -> None:
    make(tmp_path / "runs", "unfinished", norm="bn")
    make(tmp_path / "runs", 60.0, norm="gn")
    make(tmp_path / "runs", 70.0, norm="ln")
    write(collect([tmp_path / "runs"]), tmp_path)
    script = """
    const table = one(".measured"), button = table.tHead.rows[0].cells[1].querySelector("button");
    const rows = () => [...table.tBodies[0].rows].map(r => r.cells[0].textContent.trim());
    return [0, 1].map(() => { button.click(); return rows(); });
    """
    assert look(tmp_path, script) == [["LN", "GN", "BN"], ["GN", "LN", "BN"]]


SWITCH = """
const shown = () => all(".charts .s1").filter(e => style(e).display !== "none").length;
const others = () => all(".charts .s0").filter(e => style(e).display !== "none").length;
const before = [shown(), others()];
one("#c1-1").checked = false;
const after = [shown(), others()];
const none = one("[data-show=none]"), scripts = none.checkVisibility();
none.click();
return [before, after, [shown(), others()], scripts];
"""


def test_rows_are_switched_off_in_every_picture(folder: Path) -> None:
    before, after, none, scripts = look(folder, SWITCH)
    assert before == [8, 8]  # measured, the paper's, six of curves
    assert after == [0, 8]
    assert none == [0, 0]
    assert scripts


def test_without_scripts_everything_is_there(folder: Path) -> None:
    """Tables and pictures, and the boxes for rows; no button that would do nothing."""
    before, after, none, scripts = look(folder, SWITCH, scripts=False)
    assert (before, after, none) == ([8, 8], [0, 8], [0, 8])
    assert not scripts
    closed, _ = look(folder, MEASURE, scripts=False)
    assert len(closed["tables"]) == 5
    assert len(closed["pictures"]) == 8
    assert look(folder, "return all('th button').length", scripts=False) == 0


def test_many_batch_sizes_scroll_within_their_tables(tmp_path: Path) -> None:
    name = "a-folder-whose-name-has-no-end" * 4
    (tmp_path / name).mkdir()
    for size in paper.BATCH_SIZES:
        for seed in range(2):
            make(
                tmp_path / "runs",
                70.0 + seed,
                norm="bn",
                batch_size=size,
                seed=seed,
                data=str(tmp_path / name),
            )
    write(collect([tmp_path]), tmp_path)
    width, _ = PHONE
    closed, _ = look(tmp_path, MEASURE, width)
    assert (closed["width"], closed["needed"]) == (width, width)
    assert max(closed["scrolled"]) > 100
    keyboard = "return all('.wide').filter(e => e.scrollWidth > e.clientWidth).map(e => e.tabIndex)"
    assert set(look(tmp_path, keyboard, width)) == {0}, "arrow keys scroll what has the focus"
