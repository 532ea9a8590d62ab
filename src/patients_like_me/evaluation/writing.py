"""An evaluation as files: JSON, CSV, LaTeX and figures, all at once or not at all."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from patients_like_me.evaluation.evaluate import Evaluation
from patients_like_me.evaluation.figures import draw_evaluation
from patients_like_me.evaluation.tables import metrics_latex, metrics_table, subgroups_table
from patients_like_me.files import atomic_folder, write_json


def with_safe_cells(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose texts a spreadsheet does not take for formulas: such a text gets an apostrophe in front.

    >>> with_safe_cells(pl.DataFrame({"name": ["=A1", "north"], "value": [-1, 2]})).rows()
    [("'=A1", -1), ('north', 2)]
    """
    text = pl.col(pl.String)
    risky = text.str.contains(r"^[=@+\t\r-]") & text.cast(pl.Float64, strict=False).is_null()
    return table.with_columns(pl.when(risky).then(pl.lit("'") + text).otherwise(text).name.keep())


def safe_cell(value: object) -> object:
    """Return a value for a cell; a text that a spreadsheet takes for a formula gets an apostrophe in front.

    >>> safe_cell("=A1"), safe_cell(-1.5), safe_cell("north")
    ("'=A1", -1.5, 'north')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "@", "+", "-", "\t", "\r")) else value


def write_evaluation(evaluation: Evaluation, out: Path | None = None) -> Path:
    """Write ``evaluation.json``, ``metrics.csv``, ``subgroups.csv``, ``metrics.tex`` and the figures.

    They go to ``RUN/evaluation`` unless ``out`` says otherwise, and replace what was there. They hold no patient's
    data: counts under 11 are hidden in strata.
    """
    name = "evaluation" if evaluation.split == "test" else f"evaluation-{evaluation.split}"
    target = evaluation.folder / name if out is None else out
    with atomic_folder(target, replace=True) as folder:
        write_json(folder / "evaluation.json", evaluation.as_json())
        with_safe_cells(metrics_table(evaluation)).write_csv(folder / "metrics.csv")
        with_safe_cells(subgroups_table(evaluation)).write_csv(folder / "subgroups.csv")
        (folder / "metrics.tex").write_text(metrics_latex(evaluation), encoding="utf-8")
        draw_evaluation(evaluation, folder)
    return target
