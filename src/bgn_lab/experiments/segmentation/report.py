"""What a report of segmentation shows beyond the table of mean IoU."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bgn_lab.experiments.experiment import Further
from bgn_lab.experiments.segmentation import figure

if TYPE_CHECKING:
    from bgn_lab.report.grid import Comparison
    from bgn_lab.training.result import Result

MOST_CLASSES, MOST_ANSWERS = 25, 10
PREFERRED = 2
"""Batch size of the answers that are shown, if it was compared."""


def caveats(found: Comparison) -> str:
    """How many images, and what a run without a result reaches."""
    over = found.results
    first = over[0]
    judged = {"validation": "validation", "train": "training"}.get(first.judged, "judged")
    return (
        f"{first.images.train:,} training and {first.images.test:,} test images,"
        f" {first.classes} classes. The most frequent class everywhere reaches"
        f" {100 * first.chance:.1f} %; a run that ends at {100 * first.floor:.1f} % or less of the"
        f" {judged} images, or whose loss is not finite, did not converge. The pixels of one image"
        " are alike, so only the spread over seeds says how sure a difference is."
    )


def further(found: Comparison) -> tuple[Further, ...]:
    """Every class, and what exact statistics change."""
    rows = [
        (label, column.place, found.cells[label, column].results)
        for label in found.labels
        for column in found.firsts
        if found.cells[label, column].results
    ]
    if not rows:
        return ()
    tables = []
    classes = [*_ious(rows[0][2][0])]
    if 0 < len(classes) <= MOST_CLASSES:
        tables.append(
            Further(
                "Pixel accuracy, and IoU of every class",
                "In %, mean over the seeds. A dash: the class neither occurs nor was it answered.",
                ("normalizer", "batch", "pixel accuracy", *classes),
                tuple(
                    (
                        label,
                        str(place),
                        _mean([result.test_accuracy for result in results]),
                        *(_mean([_ious(r).get(name) for r in results]) for name in classes),
                    )
                    for label, place, results in rows
                ),
            )
        )
    exact = tuple(
        (label, str(place), *_recalibrated(results))
        for label, place, results in rows
        if any(r.measure("test_iou_recalibrated") is not None for r in results)
    )
    if exact:
        tables.append(
            Further(
                "Recalibrated after training",
                "Mean IoU on test images in %, with the running averages of training, and with"
                " exact statistics of the training windows; same weights, mean over the seeds.",
                ("normalizer", "batch", "as trained", "recalibrated", "difference"),
                exact,
            )
        )
    return tuple(tables)


def _ious(result: Result) -> dict[str, float | None]:
    found = result.details.get("class_iou")
    if not isinstance(found, dict):
        return {}
    return {
        str(name): float(value) if isinstance(value, (int, float)) else None
        for name, value in found.items()
    }


def _recalibrated(results: Sequence[Result]) -> tuple[str, str, str]:
    pairs = [
        (own, exact)
        for r in results
        if (own := r.measure("test_iou")) is not None
        and (exact := r.measure("test_iou_recalibrated")) is not None
    ]
    gains = [b - a for a, b in pairs]
    before, after = _mean([a for a, _ in pairs]), _mean([b for _, b in pairs])
    return before, after, f"{100 * statistics.mean(gains):+.1f}" if gains else ""


def _mean(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    return f"{statistics.mean(known):.1f}" if known else "-"


def picture(found: Comparison) -> Any:
    """Answers of all rows at one batch size, first seeds."""
    places = [column.place for column in found.firsts]
    place = PREFERRED if PREFERRED in places else places[0]
    shown = {}
    for label in found.labels[:MOST_ANSWERS]:
        for run in found.at(label, place).runs[:1]:
            if run.result is not None and (own := figure.stored(run.folder)) is not None:
                shown[label] = own
    return figure.side_by_side(shown, f"Test images and answers, batch size {place}")
