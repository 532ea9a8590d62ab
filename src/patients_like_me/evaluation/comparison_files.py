"""A comparison as files: JSON, CSV, LaTeX, and a figure of the differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from patients_like_me.drawing import COLOURS, new_figure, save_figure
from patients_like_me.evaluation.compare import Cell, Comparison
from patients_like_me.evaluation.tables import latex_table, shown_interval, shown_value
from patients_like_me.evaluation.writing import with_safe_cells
from patients_like_me.files import atomic_folder, write_json


def comparison_table(comparison: Comparison) -> pl.DataFrame:
    """Return one row per run (or runs of several seeds) and measure."""
    rows: list[dict[str, Any]] = []
    for row in comparison.rows:
        for cell in row.cells:
            found = cell.difference
            rows.append(
                {
                    "row": row.name,
                    "runs": "; ".join(folder.name for folder in row.folders),
                    "name": cell.measure.name,
                    "value": cell.value,
                    "low": None if cell.interval is None else cell.interval.low,
                    "high": None if cell.interval is None else cell.interval.high,
                    "seeds": len(row.folders),
                    "seed_deviation": None if cell.spread is None else cell.spread.deviation,
                    "difference": None if found is None else found.value,
                    "difference_low": None if found is None or found.interval is None else found.interval.low,
                    "difference_high": None if found is None or found.interval is None else found.interval.high,
                    "p_value": None if found is None else found.p_value,
                    "definition": cell.measure.definition,
                    "unavailable": cell.measure.unavailable if cell.value is None else None,
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def shown_cell(cell: Cell) -> str:
    """Write value and spread over seeds: ``0.712 ± 0.004``."""
    deviation = None if cell.spread is None else cell.spread.deviation
    return shown_value(cell.value) + ("" if deviation is None else f" ± {deviation:.3f}")


def shown_difference(cell: Cell) -> str:
    """Write a difference with interval and p-value; an empty text for the first row."""
    found = cell.difference
    if found is None:
        return ""
    if found.interval is None or found.p_value is None:
        return f"{found.value:+.3f}"
    low, high = found.interval.low, found.interval.high
    return f"{found.value:+.3f} ({low:+.3f} to {high:+.3f}), p {found.p_value:.3f}"


def counted_in_words(comparison: Comparison) -> str:
    """Say on how many instances, patients and splits the runs were compared."""
    divided = f" in {comparison.times_split} splits of the cohort" if comparison.times_split > 1 else ""
    return (
        f"{comparison.task}: {comparison.instances:,} {comparison.split} instances of {comparison.patients:,} "
        f"patients{divided}."
    )


def comparison_caption(comparison: Comparison) -> str:
    """Say what was compared with what, and how."""
    over = "seeds" if comparison.times_split == 1 else "splits and seeds"
    return (
        f"{counted_in_words(comparison)} "
        f"Value: mean ± standard deviation over {over} where there are several; 95 % interval and differences from "
        f"{comparison.rows[0].name} by bootstrap over patients, the same {comparison.replicates:,} resamples for all."
    )


def comparison_latex(comparison: Comparison) -> str:
    """Return the comparison as a LaTeX table: a row per run, measures below each other."""
    rows = [
        [row.name, cell.measure.name, shown_cell(cell), shown_interval(cell.interval), shown_difference(cell)]
        for at in range(len(comparison.names))
        for row in comparison.rows
        for cell in (row.cells[at],)
    ]
    return latex_table(
        ["run", "metric", "value", "95 % interval", "difference"],
        rows,
        caption=comparison_caption(comparison),
        label=f"comparison-{comparison.task}",
    )


def draw_differences(comparison: Comparison, folder: Path) -> list[Path]:
    """Draw the differences from the first row, with their intervals, for measures that have a better side."""
    shown = [at for at, cell in enumerate(comparison.rows[0].cells) if cell.measure.best in ("high", "low")]
    rows = [(row, at) for at in shown for row in comparison.rows[1:]]
    figure, (axes,) = new_figure(width=7.2, height=1.8 + 0.3 * max(len(rows), 1))
    axes.axvline(0, color="black", linewidth=0.8, linestyle="--")
    for place, (row, at) in enumerate(rows):
        found = row.cells[at].difference
        if found is None:
            continue
        if found.interval is not None:
            axes.plot([found.interval.low, found.interval.high], [place, place], color=COLOURS[0], linewidth=1.6)
        axes.plot(found.value, place, marker="o", color=COLOURS[0], markersize=5)
    names = [
        f"{row.cells[at].measure.name}{' (less is better)' if row.cells[at].measure.best == 'low' else ''}: {row.name}"
        for row, at in rows
    ]
    axes.set_yticks(range(len(rows)), names, fontsize=8.5)
    axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    axes.set_xlabel(f"difference from {comparison.rows[0].name}")
    caption = (
        f"Differences from {comparison.rows[0].name} with 95 % intervals over the same {comparison.replicates:,} "
        f"resamples of patients. {counted_in_words(comparison)}"
    )
    return save_figure(figure, folder, "differences", caption)


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write ``comparison.json``, ``comparison.csv``, ``comparison.tex`` and the figure of differences."""
    with atomic_folder(out) as folder:
        write_json(folder / "comparison.json", comparison.as_json())
        with_safe_cells(comparison_table(comparison)).write_csv(folder / "comparison.csv")
        (folder / "comparison.tex").write_text(comparison_latex(comparison), encoding="utf-8")
        draw_differences(comparison, folder)
    return out
