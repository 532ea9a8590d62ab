"""The four figures of an evaluation: precision and recall, ROC, calibration, strata."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.drawing import COLOURS, FAINT, new_figure, save_figure, say_empty
from patients_like_me.evaluation.calibration import BINS, shown_bins
from patients_like_me.evaluation.evaluate import Evaluation
from patients_like_me.evaluation.measures import Measure
from patients_like_me.evaluation.tables import caption_of, shown_interval
from patients_like_me.plain_text import SMALLEST_SHOWN, printable

Floats = npt.NDArray[np.float64]
_GRID: Final = np.linspace(0, 1, 201)


def draw_evaluation(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Draw all figures of an evaluation into a folder, as SVG and PNG."""
    return [
        *draw_precision_recall(evaluation, folder),
        *draw_roc(evaluation, folder),
        *draw_calibration(evaluation, folder),
        *draw_strata(evaluation, folder),
    ]


def draw_precision_recall(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Draw precision against recall."""
    from sklearn.metrics import precision_recall_curve

    figure, (axes,) = new_figure()
    curves = {}
    for name, (happened, probabilities) in _curves_of(evaluation).items():
        precision, recall, _ = precision_recall_curve(happened, probabilities)
        curves[name] = _without_spikes(recall[::-1], precision[::-1])
    guess = evaluation.measure("prevalence")
    line = (_GRID, np.full_like(_GRID, guess.value)) if not evaluation.predictions.kind.adds_up else None
    name, note = _area(evaluation, evaluation.predictions.kind.areas[0])
    _draw_curves(axes, curves, name, guess=line, steps=True)
    axes.set_xlabel("recall")
    axes.set_ylabel("precision")
    return save_figure(figure, folder, "pr", f"Precision and recall. {note}{caption_of(evaluation)}.")


def draw_roc(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Draw the receiver operating characteristic."""
    from sklearn.metrics import roc_curve

    figure, (axes,) = new_figure()
    curves = {}
    for name, (happened, probabilities) in _curves_of(evaluation).items():
        false, true, _ = roc_curve(happened, probabilities)
        curves[name] = (false, true)
    name, note = _area(evaluation, evaluation.predictions.kind.areas[1])
    _draw_curves(axes, curves, name, guess=(_GRID, _GRID))
    axes.set_xlabel("false positive rate (1 - specificity)")
    axes.set_ylabel("true positive rate (sensitivity)")
    return save_figure(figure, folder, "roc", f"Receiver operating characteristic. {note}{caption_of(evaluation)}.")


def draw_calibration(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Draw the observed share against the predicted one, and below how many predictions each bin holds."""
    figure, (axes, below) = new_figure(height=5.6, rows=2, ratios=(3, 1))
    bins = shown_bins(evaluation.bins, people=not evaluation.predictions.kind.is_set)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--", label="perfectly calibrated")
    axes.plot(
        [each.predicted for each in bins],
        [each.observed for each in bins],
        marker="o",
        markersize=5,
        color=COLOURS[0],
        label=evaluation.run,
    )
    for each in bins:
        if each.interval is not None:
            ends = [each.interval.low, each.interval.high]
            axes.plot([each.predicted] * 2, ends, color=COLOURS[0], linewidth=1.2)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("observed share")
    axes.legend(frameon=False, loc="upper left")
    words = [
        f"{each.title.lower()} {each.value:.3f}" + (f" ({shown_interval(each.interval)})" if each.interval else "")
        for each in evaluation.measures
        if each.metric in ("calibration_slope", "calibration_intercept", "calibration_error") and each.value is not None
    ]
    axes.text(0.98, 0.03, "\n".join(words), transform=axes.transAxes, ha="right", va="bottom", fontsize=8.5)
    below.bar([each.low + 0.5 / BINS for each in bins], [each.number for each in bins], 0.9 / BINS, color=FAINT)
    below.set_yscale("log")
    below.set_ylim(1, 10 ** np.ceil(np.log10(max((each.number for each in bins), default=10)) + 1e-9))
    below.yaxis.set_major_formatter("{x:,.0f}")
    below.set_xlabel("predicted probability")
    below.set_ylabel("number")
    caption = (
        f"Calibration in {BINS} bins of equal width, vertical bars: 95 % intervals over patients; below, the number "
        f"of {evaluation.predictions.kind.calibrated} "
        f"per bin (logarithmic). Bins with fewer than {SMALLEST_SHOWN}, or of people with or "
        f"without the outcome, are not shown. {caption_of(evaluation)}."
    )
    return save_figure(figure, folder, "calibration", caption)


def draw_strata(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Draw the task's first metric by stratum, with intervals, against its value over all instances."""
    whole = next(each for each in evaluation.measures if each.metric == evaluation.primary[0])
    rows: list[tuple[str, Measure | None, str]] = [("all instances", whole, f"{len(evaluation.predictions):,}")]
    headings: dict[int, str] = {}
    for dimension in evaluation.dimensions:
        groups = [group for group in evaluation.subgroups if group.dimension == dimension.name]
        if groups:
            headings[len(rows)] = dimension.title
            rows.append((dimension.title, None, ""))
        for group in groups:
            shown = next((each for each in group.measures if each.metric == whole.metric), None)
            rows.append(
                (f"    {printable(group.stratum)}", shown, "hidden" if group.is_hidden else f"{group.instances:,}")
            )
    figure, (axes,) = new_figure(width=7.2, height=1.6 + 0.27 * len(rows))
    if whole.value is not None:
        axes.axvline(whole.value, color="black", linewidth=0.8, linestyle="--", zorder=0)
    for place, (_, measure, _) in enumerate(rows):
        if measure is not None and measure.value is not None:
            if measure.interval is not None:
                axes.plot(
                    [measure.interval.low, measure.interval.high], [place, place], color=COLOURS[0], linewidth=1.6
                )
            axes.plot(measure.value, place, marker="s" if place == 0 else "o", color=COLOURS[0], markersize=5)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], ha="left", fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.yaxis.set_tick_params(pad=_pad_of([name for name, _, _ in rows]))
    for place, tick in enumerate(axes.get_yticklabels()):
        tick.set_fontweight("bold" if place in headings else "normal")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    # Counts are to the right of the axes, so that no mark can cover them.
    for place, (_, measure, count) in enumerate(rows):
        missing = "" if measure is None or measure.value is not None else ", n/a"
        axes.text(1.02, place, count + missing, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
    axes.text(1.02, -1.0, "instances", transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
    axes.set_xlabel(whole.title)
    absent = [f"{each.title.lower()}: {each.unavailable}" for each in evaluation.dimensions if each.unavailable]
    if len(rows) == 1:
        absent += [note for note in evaluation.notes if note.startswith("no strata")]
    caption = (
        f"{whole.title} by stratum with 95 % intervals; dashed: all instances. Hidden: fewer than {SMALLEST_SHOWN} "
        f"patients or instances, or needed to hide such a stratum. "
        + (f"Not available: {'; '.join(absent)}. " if absent else "")
        + f"{caption_of(evaluation)}."
    )
    return save_figure(figure, folder, "strata", caption)


def _curves_of(evaluation: Evaluation) -> dict[str, tuple[Floats, Floats]]:
    """Return outcomes and probabilities of every curve that has both classes; pooled for a multi-label task."""
    predictions = evaluation.predictions
    happened, probabilities = predictions.targets, predictions.columns
    if predictions.kind.adds_up:
        names = predictions.outputs or tuple(str(number) for number in range(probabilities.shape[1]))
        found = {name: (happened[:, at], probabilities[:, at]) for at, name in enumerate(names)}
    else:
        found = {evaluation.run: (happened.ravel(), probabilities.ravel())}
    return {name: curve for name, curve in found.items() if 0 < curve[0].mean() < 1}


def _without_spikes(recall: Floats, precision: Floats) -> tuple[Floats, Floats]:
    """Keep the points at which the recall rises: the steps whose area is the average precision."""
    rises = np.flatnonzero(np.diff(recall) > 0) + 1
    return np.concatenate([[0.0], recall[rises]]), np.concatenate([precision[rises[:1]], precision[rises]])


def _at_grid(across: Floats, up: Floats, *, steps: bool) -> Floats:
    """Return the height of a curve at even places, of the next step or between two points."""
    if steps:
        return up[np.minimum(np.searchsorted(across, _GRID), len(up) - 1)]
    return np.interp(_GRID, across, up)


def _draw_curves(
    axes: Any,
    curves: dict[str, tuple[Floats, Floats]],
    name: str,
    *,
    guess: tuple[Floats, Floats] | None,
    steps: bool = False,
) -> None:
    """Draw one curve, or the mean of several over the faint single ones."""
    if not curves:
        say_empty(axes, "not available: one class only")
    style: dict[str, Any] = {"drawstyle": "steps-pre" if steps else "default"}
    if len(curves) == 1:
        axes.plot(*next(iter(curves.values())), color=COLOURS[0], linewidth=1.8, label=name, **style)
    elif curves:
        for number, (across, up) in enumerate(curves.values()):
            axes.plot(across, up, color=FAINT, linewidth=0.8, label="each class" if number == 0 else None, **style)
        middle = np.mean([_at_grid(across, up, steps=steps) for across, up in curves.values()], axis=0)
        axes.plot(_GRID, middle, color=COLOURS[0], linewidth=2.2, label=name)
    if guess is not None:
        axes.plot(*guess, color="black", linewidth=0.8, linestyle="--", label="a guess")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    if curves or guess is not None:
        axes.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=9, loc="best")


def _area(evaluation: Evaluation, metric: str) -> tuple[str, str]:
    """Return the name of the curve with its area, and what the caption has to say about it."""
    kind, measure = evaluation.predictions.kind, evaluation.measure(metric)
    area = "not available" if measure.value is None else f"{measure.value:.3f} ({shown_interval(measure.interval)})"
    if kind.is_set:
        return (
            f"{evaluation.run}, all codes pooled",
            f"All pairs of instance and code pooled; {measure.title}, which is not the area shown: {area}. ",
        )
    if kind.adds_up:
        return f"mean of the classes; {measure.title} {area}", "One class against the rest. "
    return f"{evaluation.run}: {measure.title} {area}", ""


def _pad_of(names: list[str]) -> float:
    """Return the room that left-aligned names need, in points."""
    return 5.6 * max(len(name) for name in names) + 6
