"""The documentation: lines, links, the order of reading, the reference, widths of tables."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import bgn
from tests import browser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TOP = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)|^\[[^\]]+\]: ([^#\s]+)", re.MULTILINE)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [*TOP, ROOT / "CHANGELOG.md", *PAGES], ids=name)
def test_no_line_has_more_than_100_characters(page: Path) -> None:
    lines = page.read_text().splitlines()
    long = [f"{number}: {line}" for number, line in enumerate(lines, 1) if len(line) > 100]
    assert not long


def test_the_readme_is_short_and_begins_with_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    places = [lines.index(next(line for line in lines if line.startswith(command)))
              for command in ("make compare", "make test")]  # fmt: skip
    assert max(places) < 20
    (table,) = re.findall(
        r"^## Should I use it\?\n\n((?:\|.*\n)+)", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert len(table.splitlines()) == 2 + 5


@pytest.mark.parametrize("page", [*TOP, *PAGES], ids=name)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    code = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    for pair in LINK.findall(code.sub("", page.read_text())):
        target = pair[0] or pair[1]
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_begins_with_its_answer(page: Path) -> None:
    title, *rest = [line for line in page.read_text().splitlines() if line.strip()]
    assert title.startswith("# ")
    assert not rest[0].startswith(("#", "```", "![", "!!!")), rest[0]


def test_every_page_has_its_place_in_the_order_of_reading() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra `docs` brings")
    found: list[str] = []

    def collect(entry: Any) -> None:
        if isinstance(entry, str):
            found.append(entry)
        else:
            for part in entry if isinstance(entry, list) else entry.values():
                collect(part)

    collect(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def test_the_reference_has_every_public_name() -> None:
    listed = re.findall(r"^::: bgn\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    modules = {"functional", "__version__"}
    assert sorted(listed) == sorted(set(bgn.__all__) - modules)
    functions = re.findall(
        r"^::: bgn\.functional\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE
    )
    public = [key for key in vars(bgn.functional) if key.endswith("_norm") and key[0] != "_"]
    assert sorted(functions) == sorted(public)


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe", reason="needs griffe, which the extra `docs` brings")
    from tools.docstrings import markdown

    text = "C*H*W features, see :func:`~bgn.fold`.\n\n    a*b\n\n>>> 2 * 3\n6\n\nThe end."
    code = "```pycon\n>>> 2 * 3\n6\n```"
    assert markdown(text) == f"C\\*H\\*W features, see `bgn.fold`.\n\n    a*b\n\n{code}\n\nThe end."


@pytest.mark.slow
def test_no_table_is_wider_than_the_page(tmp_path: Path) -> None:
    """At the widths of a laptop and of a phone."""
    if browser.CHROMIUM is None:
        pytest.skip("needs Chromium")
    if find_spec("zensical") is None:
        pytest.skip("needs zensical: pip install '.[docs]'")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)  # the site is written beside the real file
    shutil.copytree(DOCS, tmp_path / "docs")
    for part in ("src", "tools"):
        (tmp_path / part).symlink_to(ROOT / part)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    profile = tmp_path / "profile"
    found = browser.measure(tmp_path / "site", (1280, 390), profile)
    shutil.rmtree(profile, ignore_errors=True)
    assert len(found) == 2 * len(PAGES)
    assert sum(page["tables"] for page in found.values()) > 2 * len(PAGES)
    assert {where: page["wide"] for where, page in found.items() if page["wide"]} == {}
    assert [where for where, page in found.items() if page["page"] > 0] == []
