from __future__ import annotations

import csv
import io

import pytest

from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, TableRow, csv_of
from patients_like_me.evaluation.intervals import SeedSpread


@pytest.fixture
def table() -> ResultTable:
    columns = (
        Column("AUPRC", ("Readmission", "MIMIC-III")),
        Column("AUPRC", ("Readmission", "MIMIC-IV")),
        Column("seconds", ("Cost", ""), scale=1.0, best="low"),
    )
    rows = (
        TableRow(("a", "VEM"), (SeedSpread(0.486, 0.004, 3), None, SeedSpread(9.0, None, 1))),
        TableRow(("a", "LM_only"), (SeedSpread(0.436, 0.01, 3), "few", SeedSpread(7.0, None, 1)), mark="chosen"),
        TableRow(("b", "VEM"), (SeedSpread(0.1, None, 1), None, None)),
    )
    return ResultTable("50 % of all", "t", ("Backbone", "Training"), columns, rows)


def test_markdown_has_a_line_per_row_and_the_best_of_a_block_is_bold(table: ResultTable) -> None:
    lines = table.markdown().splitlines()
    assert lines[2].startswith("| Backbone | Training | Readmission MIMIC-III AUPRC |")
    assert lines[4] == "| a | VEM | **48.6 ± 0.4** | n/a | 9.0 |"
    assert lines[5] == "| a | LM_only (chosen) | 43.6 ± 1.0 | few | **7.0** |"
    # One row alone is no best.
    assert lines[6] == "| b | VEM | 10.0 | n/a | n/a |"


def test_csv_has_a_line_per_number_and_rounds_nothing(table: ResultTable) -> None:
    records = list(csv.DictReader(io.StringIO(csv_of([table, table]))))
    assert len(records) == 2 * 9
    assert records[0] == {
        "table": "t", "backbone": "a", "training": "VEM", "heading_1": "Readmission", "heading_2": "MIMIC-III", "column": "AUPRC",
        "mean": "0.486", "sd": "0.004", "low": "", "high": "",
        "runs": "3", "mark": "",
    }  # fmt: skip
    assert [record["mean"] for record in records[3:6]] == ["0.436", "few", "7.0"]
    assert records[1]["mean"] == records[1]["sd"] == ""


def test_latex_has_headings_over_groups_and_no_naked_signs(table: ResultTable) -> None:
    text = table.latex()
    assert r"\caption{50 \% of all}" in text
    assert r"\multicolumn{2}{c}{\textbf{Readmission}}" in text
    assert r"\cmidrule(lr){3-4}\cmidrule(lr){5-5}" in text
    assert r"\textbf{\meanstd{48.6}{0.4}}" in text
    assert r"LM\_only (chosen)" in text
    assert text.count(r"\midrule") == 2
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    cells = [line.count(" & ") + 1 for line in body]
    # A heading over two columns takes the place of two cells.
    assert cells == [4, 5, 5, 5, 5, 5]


def test_equal_numbers_as_written_are_both_best() -> None:
    rows = tuple(
        TableRow((name,), (SeedSpread(mean, None, 1),)) for name, mean in (("a", 0.50001), ("b", 0.5), ("c", 0.4))
    )
    lines = ResultTable("", "t", ("Row",), (Column("AUPRC"),), rows).markdown().splitlines()
    assert [line.count("**") for line in lines[4:]] == [2, 2, 0]
