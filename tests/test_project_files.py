"""The files that other programs read: workflows, templates, hooks."""

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra `docs` brings")

ROOT = Path(__file__).parent.parent
FILES = [ROOT / ".pre-commit-config.yaml", ROOT / "mkdocs.yml", ROOT / "CITATION.cff"]
FILES += sorted((ROOT / ".github").rglob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
pytestmark = pytest.mark.skipif(
    not (ROOT / ".github").exists(), reason="needs the source tree of the repository"
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def targets() -> set[str]:
    """Targets of the Makefile that `make help` lists."""
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_it_is_yaml(path: Path) -> None:
    assert isinstance(read(path), dict)


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_a_workflow_has_what_it_needs(path: Path) -> None:
    workflow = read(path)
    assert workflow[True]  # YAML reads the key `on` as a truth value
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert job["timeout-minutes"] <= 60
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(workflow["jobs"])
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1"))
            assert set(re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))) <= targets()
            for script in re.findall(r"python3? (\S+\.py)", step.get("run", "")):
                assert (ROOT / script).exists()


def test_every_form_asks_something() -> None:
    forms = [p for p in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config"]
    assert forms
    for form in map(read, forms):
        assert form["name"]
        assert form["description"]
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert fields
        assert len({field["id"] for field in fields}) == len(fields)


def test_hooks_run_what_the_check_runs() -> None:
    (repo,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    entries = {hook["entry"] for hook in repo["hooks"]}
    check = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    for entry in entries:
        command = entry.replace(".venv/bin/", "$(VENV)/bin/").replace(" --force-exclude", "")
        assert command in check
