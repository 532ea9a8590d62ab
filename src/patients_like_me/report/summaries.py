"""Pages about numbers alone: the evaluation of one run, and a comparison of several."""

from __future__ import annotations

from patients_like_me import __version__
from patients_like_me.evaluation.compare import Comparison
from patients_like_me.evaluation.comparison_files import shown_cell, shown_difference
from patients_like_me.evaluation.evaluate import Evaluation
from patients_like_me.evaluation.tables import shown_interval
from patients_like_me.plain_text import printable, shown_count
from patients_like_me.report.run_report import RunReport, Section, Table, Text
from patients_like_me.report.run_sections.material import Judged
from patients_like_me.report.run_sections.performance import calibration_section, metrics_section, subgroups_section
from patients_like_me.runs.run import Run


def evaluation_report(run: Run, evaluation: Evaluation) -> RunReport:
    """Return an evaluation as a report: metrics, calibration and subgroups; no count of patients under 11."""
    judged = Judged(run, evaluation)
    notes = tuple(Text(f"{printable(note)}.", "note") for note in evaluation.notes)
    sections = [metrics_section(judged), calibration_section(judged), subgroups_section(judged)]
    if notes:
        sections.append(Section("notes", "Notes", notes))
    predictions = evaluation.predictions
    return RunReport(
        title=f"{_in_words(evaluation.task)}: evaluation of a run ({printable(evaluation.run)})",
        task=evaluation.task,
        run=evaluation.run,
        summary=(_counted(len(predictions), evaluation.split, predictions.number_of_patients),),
        sections=tuple(sections),
        version=__version__,
    )


def comparison_report(comparison: Comparison) -> RunReport:
    """Return a comparison as a report: one table for each measure."""
    first = printable(comparison.rows[0].name)
    tables = []
    for place, name in enumerate(comparison.names):
        measure = comparison.rows[0].cells[place].measure
        rows = tuple(
            (printable(row.name), shown_cell(cell), shown_interval(cell.interval) or "–", shown_difference(cell) or "–")
            for row in comparison.rows
            for cell in (row.cells[place],)
        )
        columns = ("run", "value", "95 % interval", f"difference from {first}")
        tables.append(Table(f"{name}: {measure.definition}", columns, rows, numbers=frozenset(columns[1:])))
    return RunReport(
        title=f"{_in_words(comparison.task)}: comparison of {len(comparison.rows)} rows",
        task=comparison.task,
        run=", ".join(row.name for row in comparison.rows),
        summary=(
            _counted(comparison.instances, comparison.split, comparison.patients),
            "Value: mean ± standard deviation over seeds where there are several.",
            f"Intervals of 95 % and differences from {first} by bootstrap over patients, on the same resamples.",
        ),
        sections=(Section("measures", "Measures", tuple(tables)),),
        version=__version__,
    )


def _counted(instances: int, split: str, patients: int) -> str:
    return f"{shown_count(instances)} {split} instances of {shown_count(patients)} patients."


def _in_words(task: str) -> str:
    return printable(task).replace("_", " ").capitalize()
