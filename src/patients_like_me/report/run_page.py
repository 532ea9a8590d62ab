"""The report on a run as a page, and as Markdown; both are written from the same sections."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from patients_like_me import __version__
from patients_like_me.evaluation.intervals import REPLICATES
from patients_like_me.report.page_templates import page_environment
from patients_like_me.report.palette import DARK, LIGHT, css_variables
from patients_like_me.report.run_report import Figure, RunReport, Table, Text


def report_run(
    run: Path,
    *,
    cohort: Path | None = None,
    pages: Path | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> RunReport:
    """Make the report on a finished run; nothing is trained, and nothing is written.

    ``cohort`` is where the cohort is now, if it has moved. ``pages`` is the folder in which the report will be:
    example patients whose pages are in it get links.
    """
    from patients_like_me.report.run_sections.cohort import cohort_section
    from patients_like_me.report.run_sections.coverage import coverage_section
    from patients_like_me.report.run_sections.examples import examples_section
    from patients_like_me.report.run_sections.faithfulness import faithfulness_section
    from patients_like_me.report.run_sections.hubs import hubs_section
    from patients_like_me.report.run_sections.leakage import leakage_section
    from patients_like_me.report.run_sections.material import gather_material
    from patients_like_me.report.run_sections.overview import summary_of, title_of
    from patients_like_me.report.run_sections.performance import (
        calibration_section,
        metrics_section,
        subgroups_section,
    )
    from patients_like_me.report.run_sections.reporting import reporting_section
    from patients_like_me.report.run_sections.settings import settings_section

    material = gather_material(run, cohort=cohort, pages=pages, replicates=replicates, seed=seed, report=report)
    report("writing the sections")
    makers = (
        cohort_section,
        leakage_section,
        metrics_section,
        calibration_section,
        subgroups_section,
        faithfulness_section,
        hubs_section,
        coverage_section,
        examples_section,
        settings_section,
        reporting_section,
    )
    return RunReport(
        title=title_of(material),
        task=material.run.task.name,
        run=material.run.name,
        summary=summary_of(material),
        sections=tuple(make(material) for make in makers),
        version=__version__,
    )


def run_page(report: RunReport) -> str:
    """Return the report as HTML text: one file, no scripts, nothing loaded from elsewhere."""
    template = _environment().get_template("run_page.html.jinja")
    return template.render(r=report, light=css_variables(LIGHT), dark=css_variables(DARK))


def run_markdown(report: RunReport) -> str:
    """Return the report as Markdown text, without the pictures."""
    return _environment(markdown=True).get_template("run_page.md.jinja").render(r=report)


@cache
def _environment(*, markdown: bool = False) -> Environment:
    environment = page_environment(markdown=markdown)
    add_run_filters(environment)
    return environment


def add_run_filters(environment: Environment) -> None:
    """Give an environment the tests and filters that the templates of a report use."""
    environment.tests |= {
        "text": lambda block: isinstance(block, Text),
        "table": lambda block: isinstance(block, Table),
        "figure": lambda block: isinstance(block, Figure),
        "warns": lambda sentence: sentence.startswith("Warning:"),
    }
    # Pictures are our own SVG, in which every name is escaped already.
    environment.filters |= {"picture": Markup, "tight": _tight}


def _tight(cell: str) -> str:
    """Keep the two ends of an interval on one line, and a p-value with its letter."""
    return cell.replace(" to ", "\u00a0to\u00a0").replace(" p ", " p\u00a0")
