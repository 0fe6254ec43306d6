"""Every Python example in README and docs runs, and prints what the text block after it says.

``...`` stands for anything.
"""

import contextlib
import doctest
import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples(page: Path) -> None:
    text = page.read_text()
    namespace: dict[str, Any] = {}
    for match in EXAMPLE.finditer(text):
        code, expected = match.groups()
        line = text[: match.start()].count("\n") + 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
        right = doctest.OutputChecker().check_output(
            expected or "", printed.getvalue(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
        assert right, f"{page.name}:{line} printed\n{printed.getvalue()}"


def test_no_example_is_overlooked() -> None:
    for page in PAGES:
        text = page.read_text()
        assert text.count("```python") == len(EXAMPLE.findall(text)), page


@pytest.mark.parametrize("name", ["bn", "in", "ln", "gn", "pn", "gbgn", "bgn"])
def test_every_normalizer_has_a_card_with_formula_picture_and_advice(name: str) -> None:
    card = (ROOT / "docs/normalizers" / f"{name}.md").read_text()
    for heading in ("## Formula", "## When it helps", "## When not", "## Settings"):
        assert heading in card
    pictures = re.findall(r"!\[.*?\]\(\.\./(assets/.*?\.png)\)", card)
    assert pictures
    assert all((ROOT / "docs" / picture).stat().st_size > 1000 for picture in pictures)
