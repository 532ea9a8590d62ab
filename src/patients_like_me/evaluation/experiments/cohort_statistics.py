"""How large are the cohorts? The paper's table of cohort statistics; no run is needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from patients_like_me.evaluation.experiments.design import FigureFile, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.result_table import Column, ResultTable, TableRow
from patients_like_me.evaluation.experiments.results import ExperimentResults


def summarize(results: ExperimentResults) -> Findings:
    """Make a row per cohort."""
    counted = {place.title: place.cohort.statistics() for place in results.cohorts}
    names = list(next(iter(counted.values())))
    columns = tuple(
        Column(name.replace("_per_", "/"), scale=1.0, digits=2 if "_per_" in name else 0, best=None) for name in names
    )
    rows = tuple(TableRow((title,), tuple(float(found[name]) for name in names)) for title, found in counted.items())
    caption = (
        "Cohort statistics after plm prepare. Codes per patient are those of all visits together; a code counts once "
        "for each visit that has it."
    )
    table = ResultTable(caption, results.label(), ("Cohort",), columns, rows)
    return Findings((table,), (FigureFile("", partial(_draw, counted)),))


def _draw(counted: Mapping[str, Mapping[str, float]], folder: Path, name: str) -> None:
    panels = [
        Panel(name_of_axis, (Series("", tuple(Point(found[what]) for found in counted.values())),), "bars")
        for what, name_of_axis in (
            ("patients", "patients"),
            ("visits", "visits"),
            ("visits_per_patient", "visits/patient"),
        )
    ]
    caption = "Patients, visits and visits per patient of each cohort."
    draw_panels(folder, name, places=list(counted), axis="cohort", panels=panels, caption=caption)
