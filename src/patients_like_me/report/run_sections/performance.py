"""How good the predictions are: metrics with intervals and definitions, calibration, and strata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from patients_like_me.evaluation.calibration import BINS, Bin, shown_bins
from patients_like_me.evaluation.evaluate import CALIBRATION_METRICS
from patients_like_me.evaluation.measures import Measure
from patients_like_me.evaluation.subgroups import PREVALENCE
from patients_like_me.evaluation.tables import shown_interval, shown_threshold, shown_value
from patients_like_me.plain_text import FEW, printable, shown_count
from patients_like_me.report.run_charts import Series, interval_bar, line_chart
from patients_like_me.report.run_report import Block, Figure, Section, Table, Text
from patients_like_me.report.run_sections.material import Judged
from patients_like_me.report.small_counts import HIDDEN

_CALIBRATION: Final = CALIBRATION_METRICS
_COLUMNS: Final = ("metric", "threshold", "value", "95 % interval", "what it is")
_NUMBERS: Final = frozenset({"value", "95 % interval"})


def metrics_section(material: Judged) -> Section:
    """Return every metric but those of calibration, with its interval and its definition."""
    evaluation = material.evaluation
    chosen = [each for each in evaluation.measures if each.metric not in _CALIBRATION]
    rows = tuple(
        _row(each, hide=each.metric == "prevalence" and _few_events(material))
        for each in chosen
        if not each.unavailable
    )
    blocks: list[Block] = [
        Table(
            f"{shown_count(len(evaluation.predictions))} {evaluation.split} instances of "
            f"{shown_count(evaluation.predictions.number_of_patients)} patients. 95 % intervals by bootstrap over "
            f"patients ({evaluation.replicates:,} resamples), with all instances of a resampled patient; the spread "
            "over training seeds is in no interval.",
            _COLUMNS,
            rows,
            numbers=_NUMBERS,
        )
    ]
    blocks += _not_available(chosen)
    return Section("metrics", "Metrics", tuple(blocks))


def calibration_section(material: Judged) -> Section:
    """Return the calibration curve and its measures."""
    evaluation = material.evaluation
    chosen = [each for each in evaluation.measures if each.metric in _CALIBRATION]
    blocks: list[Block] = []
    points = calibration_points(material)
    kind = evaluation.predictions.kind
    if points:
        picture = line_chart(
            [Series(f"{material.run.name} (thin line: perfectly calibrated)", points, calibration_spread(material))],
            title="Calibration: observed share against predicted probability",
            across="predicted probability",
            up="observed share",
            x_ticks=(0, 0.2, 0.4, 0.6, 0.8, 1),
            y_range=(-0.02, 1.02),
            diagonal=True,
        )
        caption = (
            f"{BINS} bins of equal width over the {kind.calibrated}. A point below the thin line: the probabilities "
            f"were too high there; above it: too low. Vertical bars: "
            f"95 % intervals over patients. Bins with {FEW} of them are left out"
            + ("." if kind.is_set else f", and bins with {FEW} with or without the outcome.")
        )
        blocks.append(Figure("Calibration", picture, caption))
    else:
        blocks.append(Text(f"No curve: every bin holds {FEW} {kind.calibrated} or outcomes.", "note"))
    columns = tuple(column for column in _COLUMNS if column != "threshold")
    rows = tuple((name, *rest) for name, _, *rest in (_row(each) for each in chosen if not each.unavailable))
    blocks += [Table("Measures of calibration.", columns, rows, numbers=_NUMBERS), *_not_available(chosen)]
    blocks.append(_before_and_after(material))
    return Section("calibration", "Calibration", tuple(blocks))


def _before_and_after(material: Judged) -> Block:
    """Return the measures of calibration as the system said the probabilities, and as they are used."""
    evaluation = material.evaluation
    if not evaluation.calibration:
        return Text("The probabilities are those that the system says; plm calibrate RUN recalibrates them.", "note")
    after = {each.name: each for each in evaluation.measures}
    rows = tuple(
        (
            each.title,
            shown_value(each.value),
            shown_interval(each.interval) or "–",
            shown_value(after[each.name].value),
            shown_interval(after[each.name].interval) or "–",
        )
        for each in evaluation.before_calibration
    )
    columns = ("metric", "before", "95 % interval before", "after", "95 % interval after")
    words = f"Before and after recalibration ({evaluation.calibration}), both on {evaluation.split}."
    return Table(words, columns, rows, numbers=frozenset(columns[1:]))


def calibration_points(material: Judged) -> tuple[tuple[float, float], ...]:
    """Return (predicted, observed) of the bins that may be shown."""
    return tuple((each.predicted, each.observed) for each in _shown_bins(material))


def calibration_spread(material: Judged) -> tuple[tuple[float, float, float], ...]:
    """Return (predicted, low, high) of the intervals of the bins that may be shown."""
    return tuple(
        (each.predicted, each.interval.low, each.interval.high) for each in _shown_bins(material) if each.interval
    )


def _shown_bins(material: Judged) -> list[Bin]:
    return shown_bins(material.evaluation.bins, people=not material.evaluation.predictions.kind.is_set)


def subgroups_section(material: Judged) -> Section:
    """Return the task's metrics by stratum, the first of them drawn."""
    evaluation = material.evaluation
    titles = {each.name: each.title for each in evaluation.dimensions}
    of_all = {each.metric: each for each in evaluation.measures if _is_first(each)}
    whole = [of_all[metric] for metric in evaluation.by_stratum if metric in of_all]
    shown = [group for group in evaluation.subgroups if not group.is_hidden]
    hidden = {group.dimension for group in evaluation.subgroups if group.is_hidden}
    everyone = evaluation.predictions
    counts = (shown_count(len(everyone)), shown_count(everyone.number_of_patients))
    cells = _cells(whole)
    if _few_events(material):
        cells = [HIDDEN if each.metric == PREVALENCE else cell for each, cell in zip(whole, cells, strict=True)]
    rows = [("all", *counts, *cells)]
    lines: list[tuple[str, Measure | None]] = [("all", whole[0] if whole else None)]
    for dimension in titles:
        for group in shown:
            if group.dimension != dimension:
                continue
            name = f"{titles[dimension]}: {printable(group.stratum)}"
            of_group = {each.metric: each for each in group.measures if _is_first(each)}
            measures = [of_group[each.metric] for each in whole if each.metric in of_group]
            rows.append((name, f"{group.instances:,}", f"{group.patients:,}", *_cells(measures)))
            lines.append((name, measures[0] if measures else None))
        if dimension in hidden:
            rows.append((f"{titles[dimension]}: others", HIDDEN, HIDDEN, *[HIDDEN] * len(whole)))
            lines.append(("", None))
    columns = ("stratum", "instances", "patients", *(each.title for each in whole))
    blocks: list[Block] = [
        Text(
            "The task's metrics with 95 % intervals over the patients of each stratum, at the fixed threshold. Strata "
            f"with {FEW} patients or instances are hidden, and with them the next smallest, so that no hidden number "
            "follows from the others."
            + (
                " In a small stratum resamples lack some of the classes: the interval of a mean over classes (macro) "
                "can then lie above its value."
                if evaluation.predictions.kind.adds_up
                else ""
            )
        ),
        Table(
            f"By stratum. Drawn: {whole[0].title if whole else 'nothing'} with its interval; dashed: all.",
            columns,
            tuple(rows),
            numbers=frozenset(columns[1:]),
            pictures=_bars([measure for _, measure in lines]),
        ),
    ]
    blocks += [
        Text(f"{each.title}: not available, {printable(each.unavailable)}.", "note")
        for each in evaluation.dimensions
        if each.unavailable
    ]
    return Section("subgroups", "Subgroups", tuple(blocks))


def _is_first(measure: Measure) -> bool:
    """Tell whether a measure uses the fixed threshold or none: only those are given by stratum."""
    return measure.threshold is None or measure.threshold.name != "tuned"


def _cells(measures: Sequence[Measure]) -> list[str]:
    return [
        HIDDEN
        if (each.unavailable or "").startswith("hidden")
        else shown_value(each.value) + (f" ({shown_interval(each.interval)})" if each.interval else "")
        for each in measures
    ]


def _bars(measures: Sequence[Measure | None]) -> tuple[str, ...]:
    """Draw the values with their intervals on one scale."""
    drawn = [each for each in measures if each is not None and each.value is not None and each.interval is not None]
    ends = [end for each in drawn if each.interval for end in (each.interval.low, each.interval.high, each.value or 0)]
    if not drawn:
        return ()
    scale, middle = (min(ends), max(ends)), measures[0].value if measures[0] is not None else None
    return tuple(
        ""
        if each is None or each.value is None or each.interval is None
        else interval_bar(each.value, each.interval.low, each.interval.high, scale, middle)
        for each in measures
    )


def _not_available(measures: Sequence[Measure]) -> list[Text]:
    """Name the measures that could not be computed, those with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for each in measures:
        if each.unavailable and each.title not in reasons.setdefault(each.unavailable, []):
            reasons[each.unavailable].append(each.title)
    return [Text(f"Not available: {'; '.join(titles)} ({reason}).", "note") for reason, titles in reasons.items()]


def _row(measure: Measure, *, hide: bool = False) -> tuple[str, ...]:
    value, interval = shown_value(measure.value), shown_interval(measure.interval)
    if hide:
        value, interval = HIDDEN, ""
    return (
        measure.title,
        shown_threshold(measure) or "–",
        value,
        interval,
        f"{measure.definition}; {measure.averaging}",
    )


def _few_events(material: Judged) -> bool:
    """Tell whether the share of an outcome would reveal a count under 11."""
    predictions = material.evaluation.predictions
    if predictions.kind.is_set:
        return False
    groups = [material.group(predictions.labels == label) for label in np.unique(predictions.labels)]
    if predictions.kind.is_event:
        return any(group.is_small for group in groups)
    return max(groups, key=lambda group: group.instances).is_small
