"""Evaluations as tables: data frames for CSV, and LaTeX with booktabs rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from patients_like_me.evaluation.evaluate import Evaluation
from patients_like_me.evaluation.intervals import Interval
from patients_like_me.evaluation.measures import Measure

NOT_AVAILABLE: Final = "not available"
_MEASURE_COLUMNS: Final = pl.Schema(
    {
        "name": pl.String(),
        "value": pl.Float64(),
        "low": pl.Float64(),
        "high": pl.Float64(),
        "level": pl.Float64(),
        "replicates": pl.Int64(),
        "left_out": pl.Int64(),
        "threshold": pl.Float64(),
        "threshold_origin": pl.String(),
        "title": pl.String(),
        "definition": pl.String(),
        "averaging": pl.String(),
        "unavailable": pl.String(),
    }
)
_LATEX_SIGNS: Final = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # In the usual font encoding these are other characters: '>' is an inverted question mark.
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "−": "$-$",
    "τ": r"$\tau$",
    "\u00a0": "~",
}
#: Shrinks a table that is wider than the text; a narrower one stays as it is.
LATEX_PREAMBLE: Final = (
    "% needs \\usepackage{booktabs,graphicx}\n"
    "\\providecommand{\\fittext}[1]{\\sbox0{#1}\\ifdim\\wd0>\\linewidth"
    "\\resizebox{\\linewidth}{!}{\\usebox0}\\else\\usebox0\\fi}\n"
)
#: A table cannot go over the end of a page: longer ones become several.
_ROWS_PER_PAGE: Final = 40


def metrics_table(evaluation: Evaluation) -> pl.DataFrame:
    """Return one row per measure."""
    return pl.DataFrame([_row(measure) for measure in evaluation.measures], schema=_MEASURE_COLUMNS)


def subgroups_table(evaluation: Evaluation) -> pl.DataFrame:
    """Return one row per stratum and metric; a hidden stratum has one row without numbers."""
    rows: list[dict[str, Any]] = []
    for group in evaluation.subgroups:
        about = {
            "dimension": group.dimension,
            "stratum": group.stratum,
            "hidden": group.is_hidden,
            "instances": group.instances,
            "patients": group.patients,
        }
        rows += [{**about, **_row(measure)} for measure in group.measures] or [about]
    schema = {
        "dimension": pl.String(),
        "stratum": pl.String(),
        "hidden": pl.Boolean(),
        "instances": pl.Int64(),
        "patients": pl.Int64(),
        **_MEASURE_COLUMNS,
    }
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)


def shown_value(value: float | None) -> str:
    """Write a value with three decimals.

    >>> shown_value(0.12345), shown_value(None)
    ('0.123', 'not available')
    """
    return NOT_AVAILABLE if value is None else f"{value:.3f}"


def shown_interval(interval: Interval | None) -> str:
    """Write an interval; an empty text where there is none.

    >>> shown_interval(Interval(0.1, 0.25, 0.95, 1000))
    '0.100 to 0.250'
    """
    return "" if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"


def shown_threshold(measure: Measure) -> str:
    """Write the threshold of a measure."""
    if measure.threshold is None:
        return ""
    value = measure.threshold.value
    return measure.threshold.name if value is None or measure.threshold.name != "tuned" else f"tuned: {value:.3g}"


def latex_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, label: str) -> str:
    r"""Return a LaTeX table with booktabs rules; the first column is text, the others are numbers.

    >>> print(latex_table(["metric", "value"], [["a_b", "1"]], caption="50 %", label="t").splitlines()[4])
    \caption{50 \%}
    """
    parts = []
    for start in range(0, max(len(rows), 1), _ROWS_PER_PAGE):
        body = [
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            " & ".join(latex_text(column) for column in columns) + r" \\",
            r"\midrule",
            *(" & ".join(latex_text(cell) for cell in row) + r" \\" for row in rows[start : start + _ROWS_PER_PAGE]),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        continued = " (continued)" if start else ""
        numbered = f"{label}-{start // _ROWS_PER_PAGE + 1}" if start else label
        parts.append(fitted_latex(body, caption=f"{caption}{continued}", label=numbered))
    return LATEX_PREAMBLE + "\n".join(parts)


def fitted_latex(tabular: Sequence[str], *, caption: str, label: str, environment: str = "table") -> str:
    """Put a tabular into a table environment, shrunk where it is wider than the text."""
    lines = [
        rf"\begin{{{environment}}}[tp]",
        r"\centering",
        rf"\caption{{{latex_text(caption)}}}",
        rf"\label{{tab:{''.join(sign if sign.isalnum() else '-' for sign in label)}}}",
        r"\fittext{%",
        *tabular[:-1],
        rf"{tabular[-1]}}}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    r"""Write a text so that LaTeX shows it as it is.

    >>> latex_text("f1_macro 5 %")
    'f1\\_macro 5 \\%'
    """
    return "".join(_LATEX_SIGNS.get(sign, sign) for sign in text)


def metrics_latex(evaluation: Evaluation) -> str:
    """Return the measures as a LaTeX table."""
    rows = [
        [each.title, shown_threshold(each), shown_value(each.value), shown_interval(each.interval)]
        for each in evaluation.measures
    ]
    return latex_table(
        ["metric", "threshold", "value", "95 % interval"],
        rows,
        caption=caption_of(evaluation),
        label=f"{evaluation.task}-{evaluation.run}",
    )


def caption_of(evaluation: Evaluation) -> str:
    """Say in one sentence what a table or figure of an evaluation is about."""
    counted = evaluation.predictions
    return (
        f"{evaluation.task}, {evaluation.run}: {len(counted):,} {evaluation.split} instances of "
        f"{counted.number_of_patients:,} patients; 95 % intervals by bootstrap over patients "
        f"({evaluation.replicates:,} resamples)"
    )


def _row(measure: Measure) -> dict[str, Any]:
    interval, threshold = measure.interval, measure.threshold
    return {
        "name": measure.name,
        "value": measure.value,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "level": None if interval is None else interval.level,
        "replicates": None if interval is None else interval.replicates,
        "left_out": None if interval is None else interval.left_out,
        "threshold": None if threshold is None else threshold.value,
        "threshold_origin": None if threshold is None else threshold.origin,
        "title": measure.title,
        "definition": measure.definition,
        "averaging": measure.averaging,
        "unavailable": measure.unavailable,
    }
