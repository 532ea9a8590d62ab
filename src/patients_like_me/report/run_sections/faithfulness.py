"""Do predictions lean on the references that are shown? The masking experiment in a figure and a table."""

from __future__ import annotations

from typing import Final

import numpy as np

from patients_like_me.explanation.faithfulness import PAPER_K
from patients_like_me.explanation.masking_experiment import LOGIT, PROBABILITY, RANDOM, MaskedChange, MaskingResult
from patients_like_me.explanation.methods import method_named
from patients_like_me.explanation.reference_faithfulness import SMALLEST_PART, ReferenceFaithfulness
from patients_like_me.plain_text import FEW, shown_count
from patients_like_me.report.run_charts import Series, line_chart
from patients_like_me.report.run_report import Block, Figure, Section, Table, Text, absent
from patients_like_me.report.run_sections.coverage import neighbors_of_predictions
from patients_like_me.report.run_sections.material import Material

_KEY, _TITLE = "faithfulness", "Faithfulness of the references"
_WORDS: Final = {LOGIT: "fall of the target logit", PROBABILITY: "mean change of the probabilities"}


def faithfulness_section(material: Material) -> Section:
    """Return what is lost when references are taken away, by each method of ordering them."""
    if material.use is None:
        return absent(_KEY, _TITLE, material.no_graph)
    if material.removed is not None:
        return _section_of_shares(material.removed)
    if material.too_large:
        return Section(_KEY, _TITLE, (Text(f"Not computed: {material.too_large}.", "warning"),), applies=False)
    if material.faithfulness is None:
        return absent(_KEY, _TITLE, "no test instance has a reference")
    found, result = material.faithfulness, material.faithfulness.masking[0]
    k = PAPER_K if PAPER_K in result.ks else result.ks[0]
    blocks: list[Block] = [
        Text(
            f"The first k references of every instance are removed, one instance at a time, and the instance is "
            f"predicted again. References that matter change the prediction more than references taken at random. "
            f"{_counts(material, result, k)}"
        ),
        _verdict_of_masking(material, result),
        Figure(
            "Masking experiment",
            line_chart(
                [_series(result, method) for method in result.methods if method != RANDOM],
                title="How much more than random removal each method changes the probabilities",
                across="references removed per instance (k)",
                up="beyond random, in points",
                x_ticks=result.ks,
                zero=True,
            ),
            "How much farther the probabilities move, on average and whatever the outcome was, than when references "
            "are removed at random (the line at 0). Vertical bars: 95 % intervals over patients. A method whose "
            "bars are above 0 finds references that matter.",
        ),
        _table(result, k),
        *(Text(f"{sentence[0].upper()}{sentence[1:]}.", "warning") for sentence in found.left_out),
    ]
    low = [f"{each.second} {each.kendall:.2f}" for each in found.randomisation if each.kendall is not None]
    if low:
        blocks.append(
            Text(
                "Sanity check: rank correlation (Kendall) of the importances with those of networks with random "
                f"weights, which should be near 0: {'; '.join(low)}.",
                "note",
            )
        )
    blocks.append(
        Text(f"Target logit: {found.target}. More methods, and stability over seeds: plm faithfulness.", "note")
    )
    return Section(_KEY, _TITLE, tuple(blocks))


def _section_of_shares(found: ReferenceFaithfulness) -> Section:
    """Return what is lost without references that bring their outcomes."""
    rows = tuple(
        (
            str(each.k),
            f"{_size(each.first)} ({_size(each.first_low)} to {_size(each.first_high)})",
            _size(each.random),
            "–" if each.factor is None else f"{each.factor:.1f} ({each.low:.1f} to {each.high:.1f})",
        )
        for each in found.removed
    )
    columns = ("references removed", "largest shares", "at random", "how many times as far")
    return Section(
        _KEY,
        _TITLE,
        (
            Text(
                "The references with the largest shares of every instance are removed, and the instance is predicted "
                "again. References that matter change the prediction more than references taken at random."
            ),
            _verdict_of_shares(found),
            Table(
                "How far the probabilities move, on average and whatever the outcome was, with 95 % intervals over "
                "patients.",
                columns,
                rows,
                numbers=frozenset(columns),
            ),
        ),
    )


def _verdict_of_shares(found: ReferenceFaithfulness) -> Text:
    return Text(found.verdict(PAPER_K), "warning" if found.hardly_matter(PAPER_K) else "plain")


def verdict_of(material: Material) -> Text | None:
    """Say whether the references of a run matter, and by how much; None where no prediction uses one."""
    if material.removed is not None:
        return _verdict_of_shares(material.removed)
    if material.faithfulness is None:
        return None
    return _verdict_of_masking(material, material.faithfulness.masking[0])


def _verdict_of_masking(material: Material, result: MaskingResult) -> Text:
    columns = material.evaluation.predictions.columns
    spread = float(np.abs(columns - columns.mean(axis=0)).mean())
    return verdict(result, PAPER_K if PAPER_K in result.ks else result.ks[0], spread)


def verdict(result: MaskingResult, k: int, spread: float) -> Text:
    """Say how far the probabilities move without references, with intervals, and against random removal.

    ``spread`` is how far probabilities differ between patients (their mean distance from the mean). Where even the
    most effective removal surely moves them by less than a twentieth of that, the references hardly matter.
    """
    changes = {method: result.change(method, k, PROBABILITY) for method in result.methods}
    known = {method: each for method, each in changes.items() if each.value is not None and each.interval is not None}
    if not known:
        return Text("How far the probabilities move without references is not available.", "note")
    strongest = max(known, key=lambda method: known[method].value or 0.0)
    first = known[strongest]
    assert first.interval is not None
    size = (
        f"without the first {k} by {strongest.replace('_', ' ')} the probabilities move by {_size(first.value)} on "
        f"average (95 % interval {_size(first.interval.low)} to {_size(first.interval.high)}); between patients they "
        f"differ by {_size(spread)}"
    )
    if first.interval.high < SMALLEST_PART * spread:
        return Text(f"The references hardly matter in this run: {size}.", "warning")
    beating = [f"{method.replace('_', ' ')} ({_beyond(each)})" for method, each in known.items() if _beats(each)]
    if not beating:
        compared = "no method moves them further than random removal beyond the sampling error"
        return Text(f"{size[0].upper()}{size[1:]}; {compared}.", "warning")
    return Text(f"{size[0].upper()}{size[1:]}. Further than random removal: {'; '.join(beating)}.")


def _size(value: float | None) -> str:
    """Write a change of a probability in percentage points.

    >>> _size(0.0032), _size(0.12)
    ('0.32 points', '12 points')
    """
    return f"{100 * (value or 0.0):.2g} points"


def _beyond(change: MaskedChange) -> str:
    against = change.against_random
    assert against is not None
    assert against.interval is not None
    return f"by {_size(against.value)}, {_size(against.interval.low)} to {_size(against.interval.high)}"


def _beats(change: MaskedChange) -> bool:
    against = change.against_random
    return against is not None and against.interval is not None and against.interval.low > 0


def _counts(material: Material, result: MaskingResult, k: int) -> str:
    neighbors = neighbors_of_predictions(material)
    if material.group(neighbors > 0).is_small:
        return f"Few test instances have references, or few patients are behind them ({FEW})."
    if material.group(neighbors == 0).is_small:
        return "Nearly all test instances have references."
    fewer = f"those with fewer than {k} ({shown_count(result.fewer[k])}) lose all they have"
    return f"{result.with_references:,} of {result.instances:,} test instances have references; {fewer}."


def _series(result: MaskingResult, method: str) -> Series:
    against = {k: result.change(method, k, PROBABILITY).against_random for k in result.ks}
    found = {k: each for k, each in against.items() if each is not None}
    # In points, as the sentences and the table say it.
    return Series(
        method.replace("_", " "),
        tuple((float(k), 100 * each.value) for k, each in found.items()),
        tuple(
            (float(k), 100 * each.interval.low, 100 * each.interval.high) for k, each in found.items() if each.interval
        ),
    )


def _short(value: float) -> str:
    """Write a change with two significant digits: its interval is wider than the third.

    >>> _short(0.004567), _short(-0.0123), _short(0.0)
    ('+0.0046', '−0.012', '0')
    """
    return f"{value:+.2g}".replace("-", "−") if value else "0"


def _table(result: MaskingResult, k: int) -> Table:
    measures = result.measures
    titles = [_WORDS.get(measure, f"change of {measure.replace('_', ' ')}") for measure in measures]
    rows = []
    for method in result.methods:
        cells = []
        for measure in measures:
            change = result.change(method, k, measure)
            if change.value is None:
                cells.append("not available")
                continue
            interval = change.interval
            spread = f" ({_short(interval.low)} to {_short(interval.high)})" if interval else ""
            p_value = change.against_random.p_value if change.against_random else None
            cells.append(_short(change.value) + spread + ("" if p_value is None else f", p {p_value:.3g}"))
        rows.append((f"{method.replace('_', ' ')}: {method_named(method).meaning}", *cells))
    return Table(
        f"The first {k} references removed, by each method, with 95 % intervals over patients; p: difference from "
        "random removal. A metric that falls and a logit that falls mean that the references had helped.",
        ("method", *titles),
        tuple(rows),
        numbers=frozenset(titles),
    )
