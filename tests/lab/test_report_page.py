"""The page of a report in a browser, on a phone and on a desk."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bgn_lab import paper
from bgn_lab.report.collect import collect
from bgn_lab.report.write import write
from tests.lab.report_runs import grid, make

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome"),
]
PHONE, DESK = (390, 844), (1280, 800)
Seen = tuple[tuple[int, int], list[dict[str, Any]]]

# a window may have a least width, a frame has none: the page is measured inside of one
FRAME = """<!DOCTYPE html><body style="margin: 0">
<iframe src="report.html" width="{width}" height="30000" style="border: 0"></iframe>
<script>
onload = () => {{
  const page = frames[0], root = page.document.documentElement;
  const all = what => [...page.document.querySelectorAll(what)];
  const box = e => {{
    const b = e.getBoundingClientRect();
    return [b.left, b.top, b.right, b.bottom];
  }};
  const measure = () => ({{
    width: page.innerWidth, needed: root.scrollWidth,
    tables: all("table").filter(e => e.checkVisibility()).map(box),
    scrolled: all(".wide").map(e => e.scrollWidth - e.clientWidth),
    pictures: all("img").map(
      e => ({{box: box(e), width: e.naturalWidth, height: e.naturalHeight}})),
    outside: all("body *").filter(e => box(e)[2] > page.innerWidth + 1)
      .map(e => e.outerHTML.slice(0, 80)),
    small: Math.min(
      ...all("td, th, p, small").map(e => parseFloat(page.getComputedStyle(e).fontSize))),
  }});
  const closed = measure();
  all("details").forEach(e => e.open = true);
  const found = JSON.stringify([closed, measure()]).replaceAll("<", "&lt;");
  document.body.innerHTML = "<pre>" + found + "</pre>";
}};
</script></body>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("page")
    write(collect([grid(here / "runs")]), here)
    return here


def measure(folder: Path, width: int) -> list[dict[str, Any]]:
    """As the page opens, and with everything unfolded."""
    frame = folder / f"frame-{width}.html"
    frame.write_text(FRAME.format(width=width))
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-sync", "--disable-background-networking", "--disable-component-update",
        "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}",
        "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", frame.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<pre>(.*)</pre>", shown, re.DOTALL)
    assert found, shown[-2000:]
    states: list[dict[str, Any]] = json.loads(html.unescape(found[1]))
    return states


@pytest.fixture(scope="module", params=[PHONE, DESK], ids=["phone", "desk"])
def seen(request: pytest.FixtureRequest, folder: Path) -> Seen:
    """The screen and what is measured on it."""
    return request.param, measure(folder, request.param[0])


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
    assert len(closed["pictures"]) == 2
    for picture in closed["pictures"]:
        left, top, right, bottom = picture["box"]
        assert right - left > 0.75 * width
        assert (bottom - top) / (right - left) == pytest.approx(
            picture["height"] / picture["width"], rel=0.02
        )
        assert (picture["height"] > picture["width"]) == (
            width < 640
        )  # panels below each other on a phone


def test_the_table_is_on_the_first_screen(seen: Seen) -> None:
    (_, height), (closed, _) = seen
    _, top, _, bottom = closed["tables"][0]
    assert top < height / 4
    assert bottom < height


def test_text_is_large_enough_to_read(seen: Seen) -> None:
    assert seen[1][0]["small"] >= 10


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
    closed, _ = measure(tmp_path, width)
    assert (closed["width"], closed["needed"]) == (width, width)
    assert max(closed["scrolled"]) > 100
