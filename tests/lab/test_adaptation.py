"""Adaptation learns what the source does not teach, resumes, and ends when nothing changes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import bgn
from bgn_lab import cli, experiments, paper
from bgn_lab.experiments.adaptation.discrepancy import cdd
from bgn_lab.experiments.adaptation.recipe import AdaptationRecipe
from bgn_lab.experiments.adaptation.task import Adaptation
from bgn_lab.report import text
from bgn_lab.report.collect import Run
from bgn_lab.report.comparison import compare
from bgn_lab.system.signals import Interrupted
from bgn_lab.training.metrics import Metrics
from bgn_lab.training.result import FINISHED, NOT_CONVERGED, Result
from bgn_lab.training.run import Watcher, _result, run
from tests.lab.interrupting import same_bits
from tests.lab.small_images import few_test_images

TINY = AdaptationRecipe(
    onednn=True, norm="bgn", width=8, stride=4, epochs=3, warm=1, lr=0.01, limit=300, iterations=3
)


def task(recipe: AdaptationRecipe = TINY) -> Adaptation:
    found = few_test_images(recipe)
    assert isinstance(found, Adaptation)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["bn", "bgn"])
def test_it_beats_the_source_alone(norm: str, tmp_path: Path) -> None:
    """Adaptation with the command's settings for the images that ship gains well over 5 points.

    GN, whose statistics are each image's own, takes these textures for what they are even without
    adaptation: it gains nothing.
    """
    recipe = replace(experiments.get("adaptation").presets["laptop"].recipe, norm=norm, epochs=7)
    assert isinstance(recipe, AdaptationRecipe)
    adapted = experiments.run(recipe, tmp_path / "adapted")
    alone = experiments.run(replace(recipe, adapt=False, epochs=7), tmp_path / "alone")
    assert adapted.test_accuracy > alone.test_accuracy + 0.05
    assert adapted.status == FINISHED
    assert (tmp_path / "adapted" / "features.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("norm", ["bn", "in", "ln", "gn", "pn", "gbgn", "bgn"])
def test_every_normalizer(norm: str, tmp_path: Path) -> None:
    result = run(task(replace(TINY, norm=norm, epochs=2)), tmp_path)
    assert result.epochs == 2
    assert (result.source, result.target) == ("plain", "textured")
    epochs = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert "changed" not in epochs[0], "the first loop is warm"
    assert epochs[1]["kept"] == 200
    assert all(epoch["steps"] == 3 for epoch in epochs)


def test_interrupted_in_a_loop_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    same_bits(task, tmp_path, (1, 2))


def test_interrupted_between_loops_it_knows_the_clusters_of_before(tmp_path: Path) -> None:
    def stop(epoch: int, step: int) -> None:
        if (epoch, step) == (2, 1):
            raise Interrupted(130)

    with pytest.raises(Interrupted):
        run(task(), tmp_path, Watcher(step=stop))
    run(task(), tmp_path)
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < last["changed"] < 1, "1 is what there is without any before"
    assert last["shift"] < 0.5


class TestPlan:
    def begun(self, recipe: AdaptationRecipe = TINY) -> tuple[Adaptation, torch.nn.Module]:
        own = task(recipe)
        model = own.build()
        own.begin(recipe.warm, model)
        return own, model

    def test_batches_have_labeled_images_and_pairs_of_classes(self) -> None:
        own, _ = self.begun()
        batches = list(own.batches(1, [0, 1, 2]))
        again = list(own.batches(1, [2]))
        assert torch.equal(batches[2][0], again[0][0]), "whatever is wanted"
        for x, y in batches:
            n = (len(x) - 30) // 2
            assert n % 3 == 0
            assert torch.equal(y[30 : 30 + n], y[30 + n :])
        assert own.images() == 3 * 30

    def test_it_begins_with_the_sources_normalizers(self) -> None:
        own = task()
        model = own.build()
        with bgn.domain(model, "source"):
            model(torch.randn(4, 1, 28, 28))
        own.begin(1, model)
        norm = model.get_submodule("backbone.bn1")
        assert isinstance(norm, bgn.DomainNorm)
        for name, value in norm["source"].state_dict().items():
            assert torch.equal(value, norm["target"].state_dict()[name])
        with bgn.domain(model.train(), "source"):
            model(torch.randn(4, 1, 28, 28))
        own.begin(2, model)
        assert not torch.equal(norm["source"].running_mean, norm["target"].running_mean), (
            "only once"
        )

    def test_it_is_over_when_nothing_changes(self) -> None:
        own, _ = self.begun()
        assert not own.over()
        own.plan["moved"] = torch.tensor([0.0, 0.0005, 0.0])
        assert own.over()
        own.plan["moved"] = torch.tensor([0.0, 0.0015, 0.0])
        assert not own.over()

    def test_the_papers_text_stops_by_the_gap_alone(self) -> None:
        own, _ = self.begun(replace(TINY, stop="gap"))
        own.plan["moved"] = torch.tensor([0.5, 0.0005, 0.5])
        assert own.over()
        own.plan["moved"] = torch.tensor([0.0, 0.0015, 0.0])
        assert not own.over()

    def test_a_run_that_is_over_stops(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = task(replace(TINY, epochs=9))
        monkeypatch.setattr(
            own, "over", lambda: "labels" in own.plan and int(own.plan["done"]) >= 6
        )
        result = run(own, tmp_path)
        assert result.epochs == 2
        assert run(task(replace(TINY, epochs=9)), tmp_path) == result

    @pytest.mark.parametrize(("source", "status"), [(0.9, FINISHED), (0.1, NOT_CONVERGED)])
    def test_what_learns_the_source_converged(self, source: float, status: str) -> None:
        """However little it knows of the target."""
        own, model = self.begun()
        tested = {"test_accuracy": 0.1, "test_images": 200}
        last = {"epoch": 1, "lr": 0.1, "seconds": 1.0, "images_per_second": 9.0, "train_loss": 1.0}
        metrics = Metrics.from_json({**last, "train_accuracy": source, **tested})
        found = _result(own, model, [metrics], 1.0)
        assert (found.status, found.test_accuracy) == (status, 0.1)

    def test_nothing_trusted_leaves_the_source(self) -> None:
        own, model = self.begun(replace(TINY, trust=0.0))
        assert not own.plan["kept"].any()
        (batch,) = own.batches(1, [0])
        assert len(batch[0]) == 30
        loss, logits, y = own.loss(model, own_prepared(batch))
        assert float(loss.detach()) == pytest.approx(float(F.cross_entropy(logits, y).detach()))

    def test_the_loss_is_cross_entropy_and_discrepancy(self) -> None:
        own, model = self.begun(replace(TINY, norm="gn", alpha=0.3))
        x, y = own_prepared(next(iter(own.batches(1, [0]))))
        loss, logits, _ = own.loss(model, (x, y))
        n = (len(x) - 30) // 2
        with bgn.domain(model, "source"):
            ours_f, ours = model(x[: 30 + n], both=True)
        with bgn.domain(model, "target"):
            theirs_f, theirs = model(x[30 + n :], both=True)
        assert torch.allclose(logits, ours[:30], atol=1e-5)
        expected = F.cross_entropy(ours[:30], y[:30])
        pairs = ((ours_f[30:], theirs_f), (ours[30:].softmax(1), theirs.softmax(1)))
        expected = expected + 0.3 * sum(
            cdd(a.view(n // 3, 3, -1), b.view(n // 3, 3, -1), 10) for a, b in pairs
        )
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)

    def test_rates(self) -> None:
        own, model = self.begun()
        own.plan["done"] = torch.tensor(990)
        assert own.rate(5, 10, 100) == pytest.approx(0.01 / 2**0.75)
        optimizer = own.optimizer(model)
        assert [group["factor"] for group in optimizer.param_groups] == [1.0, 10.0]
        assert len(optimizer.param_groups[1]["params"]) == 2
        steps = replace(TINY, optimizer="adam", schedule="steps", milestones=(2,))
        assert [task(steps).rate(epoch, 0, 3) for epoch in (1, 2)] == pytest.approx([0.01, 0.001])


def own_prepared(batch: Any) -> Any:
    x, y = batch
    return x.float() / 255, y


def test_pretrained_first_layers_get_no_gradients(tmp_path: Path) -> None:
    before = experiments.run(
        replace(experiments.recipe({"width": 8, "norm": "bn"}), limit=320, epochs=1),
        tmp_path / "before",
    )
    assert before.epochs == 1
    recipe = replace(
        TINY, warm=0, epochs=1, stride=None, weights=str(tmp_path / "before"), groups=4
    )
    own = task(recipe)
    model = own.build()
    own.begin(0, model)
    batch = own_prepared(next(iter(own.batches(0, [0]))))
    loss = own.loss(model.train(), batch)[0]
    loss.backward()  # type: ignore[no-untyped-call]
    still = {name for name, p in model.named_parameters() if p.grad is None}
    assert {name.split(".")[1] for name in still} == {"conv1", "bn1", "layer1"}
    assert all(p.grad is not None for name, p in model.named_parameters() if "layer2" in name)
    norm = model.get_submodule("backbone.bn1")
    assert isinstance(norm, bgn.DomainNorm)
    assert int(norm["source"].num_batches_tracked) > int(norm["target"].num_batches_tracked), (
        "they still track"
    )


@pytest.mark.parametrize(
    ("task", "text", "table"),
    [("ad", 1, 8), ("aw", 8, 1), ("da", 512, 512), ("dw", 32, 32), ("pt", None, None)],
)
def test_groups_of_the_paper(task: str, text: int | None, table: int | None) -> None:
    recipe = replace(TINY, task=task)
    assert recipe.usual_groups == text
    assert replace(recipe, printed="table").usual_groups == table
    assert replace(recipe, trust=None).trust_limit == (0.05 if task in ("ad", "aw") else 1.0)


@pytest.mark.parametrize(
    ("name", "other"),
    [("dslr-amazon", "da"), ("webcam-amazon", "wa"), ("amazon-dslr", "ad"), ("a-webcam", "aw")],
)
def test_a_task_by_names_is_the_one_by_initials(name: str, other: str, tmp_path: Path) -> None:
    by_name, by_initials = (AdaptationRecipe(data=str(tmp_path), task=t) for t in (name, other))
    assert by_name == by_initials
    assert (by_name.usual_groups, by_name.trust_limit) == (
        by_initials.usual_groups,
        by_initials.trust_limit,
    )
    assert by_name.usual_groups == paper.ADAPTATION_GROUPS[other]
    assert by_name.key() == by_initials.key()
    shipped = [AdaptationRecipe(task=task) for task in (None, "pt", "plain-textured")]
    assert len({recipe.key() for recipe in shipped}) == 1


def test_weights_count_by_their_content(tmp_path: Path) -> None:
    one, same, another = (tmp_path / f"{name}.pth" for name in "abc")
    one.write_bytes(b"weights")
    same.write_bytes(b"weights")
    another.write_bytes(b"others")
    keys = [AdaptationRecipe(weights=str(path)).key() for path in (one, same, another)]
    assert keys[0] == keys[1] != keys[2]
    before = AdaptationRecipe(weights=str(one))
    saved = before.to_json()
    one.write_bytes(b"replaced")
    assert AdaptationRecipe.from_json(saved).key() == before.key(), "what the run began with"
    assert AdaptationRecipe(weights=str(one)).key() != before.key()
    assert replace(before, weights=str(another)).weights_code != before.weights_code


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trust": 1.5}, "trust=1.5 is out of range; expected a number from 0 to 1"),
        ({"alpha": -1.0}, "alpha=-1.0 is out of range"),
        ({"warm": 4}, "warm=4 is out of range; expected a number from 0 to 3"),
        ({"optimizer": "rmsprop"}, "optimizer='rmsprop'"),
        ({"schedule": "cosine"}, "schedule='cosine'"),
        ({"stop": "never"}, "stop='never' is not known"),
        ({"model": "vgg"}, "model='vgg'"),
        ({"ways": 0}, "ways=0"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


@pytest.mark.slow
def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "compare",
        "--experiment",
        "adaptation",
        "--norms",
        "bn",
        "bgn",
        "--epochs",
        "5",
        "--seeds",
        "1",
        "--limit",
        "300",
    ]
    assert cli.main([*words, "--out", str(tmp_path), "--width", "8", "--stride", "4"]) == 0
    out = capsys.readouterr().out
    assert "domain adaptation, resnet8" in out
    table = (tmp_path / "table.md").read_text()
    assert "| normalizer | plain-textured | to BN |" in table
    assert "| BGN, paper's G, source only |" in table
    assert "77.2" in table, "the paper's own figures"
    assert (tmp_path / "curves.png").exists()
    assert (tmp_path / "report.html").exists()


def test_tables_have_a_column_for_each_task_and_their_mean() -> None:
    def made(norm: str, task: str, adapt: bool, seed: int, accuracy: float) -> Run:
        recipe = AdaptationRecipe(
            norm=norm, task=task, adapt=adapt, seed=seed, weights=f"weights/{norm}"
        )
        names = {"a": ("amazon", 2817), "d": ("dslr", 498)}
        (source, ours), (target, theirs) = names[task[0]], names[task[1]]
        result = {
            "status": FINISHED, "reason": "", "test_accuracy": accuracy, "source": source,
            "target": target, "chance": 0.03,
            "images": {"train": ours, "validation": 0, "test": theirs}, "floor": 0.05,
            "layers": [], "seconds": 1.0, "epochs": 1, "parameters": 1, "classes": 31,
            "image": [3, 224, 224],
        }  # fmt: skip
        found = Result.from_json(result)
        return Run(Path(f"{norm}{task}{adapt}{seed}"), recipe, {}, (), found)

    values = {"bn": {"da": 0.7, "ad": 0.9}, "bgn": {"da": 0.8, "ad": 0.9}}
    runs = [
        made(norm, task, adapt, seed, accuracy - (not adapt) * 0.2 + seed * 0.02)
        for norm, own in values.items()
        for task, accuracy in own.items()
        for adapt in (True, False)
        for seed in (0, 1)
    ]
    (found,) = compare(runs)
    own = "BN", "BGN, paper's G"
    assert found.labels == tuple(
        f"{label}{how}" for label in own for how in ("", ", source only")
    ), "G is another for each task"
    assert [column.title for column in found.columns] == ["ad", "da", "mean"]
    assert found.at("BGN, paper's G", "da").text() == "81.0 ± 1.4"
    assert found.at("BGN, paper's G", "da").difference_text() == "+10.0 ± 0.0"
    assert found.at("BGN, paper's G", "mean").text() == "86.0 ± 1.4"
    assert found.at("BN, source only", "mean").text() == "61.0 ± 1.4"
    assert found.at("BGN, paper's G, source only", "da").difference_text() == "+10.0 ± 0.0", (
        "to BN without adaptation"
    )
    assert not found.at("BN, source only", "da").difference_text()
    assert "amazon 2,817, dslr 498" in found.caveats()
    (less,) = compare(
        [run for run in runs if not (run.recipe.norm == "bgn" and run.recipe.place == "da")]
    )
    assert less.at("BGN, paper's G", "mean").accuracy is None, "not of some of the tasks"
    assert text.measured(found).count("\n") == 6


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["bn", "in", "ln", "gn", "pn", "gbgn", "bgn"])
def test_pretraining_of_ones_own(norm: str, tmp_path: Path) -> None:
    """With any normalizer, a network that was trained for classification can be adapted.

    It knows more than one that was not trained.
    """
    before = replace(experiments.recipe({"width": 8, "norm": norm}), stride=2, limit=2000, epochs=3)
    experiments.run(before, tmp_path / "before")
    recipe = replace(
        TINY, norm=norm, stride=2, warm=0, epochs=1, limit=1000, iterations=30, groups=None
    )
    if norm == "bgn":
        recipe = replace(recipe, groups=bgn.paper_groups(before.batch_size))
    known, unknown = replace(recipe, weights=str(tmp_path / "before")), recipe
    accuracies = []
    for name, own in {"known": known, "unknown": unknown}.items():
        experiments.run(own, tmp_path / name)
        loop = json.loads((tmp_path / name / "metrics.jsonl").read_text())
        accuracies.append(loop["train_accuracy"])
    assert accuracies[0] > accuracies[1] + 0.1
