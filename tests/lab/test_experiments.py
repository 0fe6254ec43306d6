"""The registry of experiments and their descriptors."""

import subprocess
import sys
from dataclasses import replace

import pytest

from bgn_lab import cli, experiments, paper
from bgn_lab.experiments.experiment import Experiment


@pytest.mark.parametrize("name", experiments.names())
def test_descriptors_are_whole(name: str) -> None:
    found = experiments.get(name)
    assert isinstance(found, Experiment)
    assert found.name == found.recipe.experiment == name
    assert "laptop" in found.presets
    for preset in found.presets.values():
        assert type(preset.recipe) is found.recipe
        assert all(hasattr(preset.recipe, option) for option in preset.needs)
        assert experiments.recipe(preset.recipe.to_json()) == preset.recipe
    assert isinstance(found.explain(found.recipe()), str)


def test_every_table_of_the_paper_belongs_to_an_experiment() -> None:
    found = [table for name in experiments.names() for table in experiments.get(name).paper_tables]
    assert sorted(table.number for table in found) == list(range(1, 8))
    assert {table.slug for table in found} == set(paper.TABLES)


def test_an_unknown_experiment() -> None:
    with pytest.raises(ValueError, match="experiment='adverserial'.*did you mean 'adversarial'"):
        experiments.get("adverserial")


def test_the_registry_imports_nothing_heavy() -> None:
    code = "import sys, bgn_lab.cli; sys.exit('torch' in sys.modules or 'tyro' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("run fewshot --preset paper", "--data"),
        ("run adaptation --preset paper", "--data and --weights"),
        ("run adaptation --preset paper-table", "--data and --weights"),
        ("run adaptation --preset paper-text", "--data and --weights"),
        ("run adaptation --preset laptop-office", "--data and --weights"),
        ("run adaptation --preset paper --weights resnet50.pth", "--data"),
        ("run classification --preset paper-imagenet", "--root"),
        ("compare --experiment fewshot --preset paper", "--data"),
        ("compare --experiment adaptation --preset paper-text", "--data and --weights"),
    ],
)
def test_presets_name_what_they_need(
    words: str, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    assert f"needs {missing};" in " ".join(capsys.readouterr().err.split())


def test_a_preset_with_what_it_needs() -> None:
    found = experiments.get("fewshot")
    found.check("paper", replace(found.presets["paper"].recipe, data="arrays"))


def test_settings_of_the_papers_text() -> None:
    recipe = experiments.get("adaptation").presets["paper-text"].recipe.to_json()
    wanted = {"optimizer": "adam", "schedule": "steps", "milestones": [25], "stop": "gap"}
    assert wanted.items() <= recipe.items()
