"""Pages in a real browser: no complaint, no sideways scrolling on a phone, keyboard, no label over another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from report.browser import CHROMIUM, look_at, look_at_widths

from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.scene import set_scene
from patients_like_me.records.cohort import Cohort
from patients_like_me.report.patient_page import patient_page
from patients_like_me.report.run_charts import interval_bar
from patients_like_me.report.run_page import report_run, run_page
from patients_like_me.report.run_report import RunReport, Section, Table
from patients_like_me.runs.run import load_run
from patients_like_me.tasks.audit import audit
from patients_like_me.tasks.audit_page import audit_page
from patients_like_me.tasks.registry import find_task

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install the package 'chromium'")
DESK, ZOOMED, PHONE = 1200, 600, 360


@pytest.fixture(scope="module")
def pages(finished_run: Callable[..., Path]) -> dict[str, str]:
    """Return the patient page of the best connected test instance, and the report on its run."""
    run = finished_run("drug_recommendation", references="bank")
    scene = set_scene(load_run(run))
    row = max(scene.own_rows.tolist(), key=lambda row: scene.graph.degrees[scene.node_of_row(row)])
    return {"patient": patient_page(explain(scene, row)), "run": report_run(run).html()}


@pytest.fixture(scope="module")
def audited(cohort_folder: Path) -> str:
    """Return the page of an audit, with label rates under two clocks."""
    cohort = Cohort.load(cohort_folder)
    return audit_page(audit(cohort, find_task("readmission")), cohort)


def test_the_page_of_an_audit_fits_and_is_used_by_keyboard(audited: str, tmp_path: Path) -> None:
    widths = (DESK, ZOOMED, 400, PHONE)
    for width, look in zip(widths, look_at_widths(audited, tmp_path, widths), strict=True):
        assert look.console == []
        assert look.width == width
        assert look.needed <= width
        assert look.unmarked == [], width
        assert look.stuck == [], width


@pytest.mark.parametrize("name", ["patient", "run"])
def test_a_page_is_shown_without_complaint_and_used_by_keyboard(
    name: str, pages: dict[str, str], tmp_path: Path
) -> None:
    widths = (DESK, ZOOMED, PHONE)
    for width, look in zip(widths, look_at_widths(pages[name], tmp_path, widths), strict=True):
        assert look.console == []
        assert look.width == width
        assert look.needed <= width
        assert look.labels > 5, width
        assert look.overlaps == [], width
        assert look.reachable > 3, width
        assert look.unmarked == [], width
        assert look.stuck == [], width
        assert look.closed == 0, width


def test_visits_and_likely_drugs_fit_a_phone(finished_run: Callable[..., Path], tmp_path: Path) -> None:
    scene = set_scene(load_run(finished_run("drug_recommendation", references="bank")))
    explained = (explain(scene, row) for row in scene.own_rows.tolist())
    found = next(each for each in explained if each.record.has_trend and each.references)
    page = patient_page(found)
    assert 'aria-label="Visits"' in page
    look = look_at(page, tmp_path, width=PHONE)
    assert set(look.sideways) <= {"Numbers behind the references"}


def test_the_strata_of_a_task_with_many_metrics_fit_a_desk(tmp_path: Path) -> None:
    """Four metrics with intervals, as length of stay has, and the picture of the first."""
    metrics = ("AUROC, weighted", "AUPRC, macro", "Largest class", "F1, macro")
    table = Table(
        "By stratum.",
        ("stratum", "instances", "patients", *metrics),
        (("Ethnicity: African American", "1,234", "1,234", *["0.651 (0.623 to 0.679)"] * 4),),
        numbers=frozenset({"instances", "patients", *metrics}),
        pictures=(interval_bar(0.6, 0.5, 0.7, (0.0, 1.0), 0.6),),
    )
    page = run_page(RunReport("t", "t", "r", ("All.",), (Section("subgroups", "Subgroups", (table,)),), "0"))
    assert look_at(page, tmp_path, width=DESK).sideways == []


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    page = """<!DOCTYPE html><html lang="en"><head><title>t</title><style>a { outline: none !important }</style></head>
    <body><a href="#x">bare</a><div style="width:900px">wide</div>
    <div class="box" style="width:50px;overflow-x:auto"><p style="width:200px">long</p></div>
    <svg width="100" height="20"><text x="0" y="15">one</text><text x="5" y="15">two</text></svg>
    <script>console.error("it complains")</script></body></html>"""
    look = look_at(page, tmp_path, width=PHONE)
    assert any("it complains" in line for line in look.console)
    assert look.needed > PHONE
    assert look.overlaps == [["two", "one"]]
    assert look.unmarked == ["bare"]
    assert look.stuck == ["box"]


def test_a_blocked_address_is_a_complaint(pages: dict[str, str], tmp_path: Path) -> None:
    hurt = pages["patient"].replace("</main>", '<img alt="" src="https://example.org/a.png"></main>')
    assert hurt != pages["patient"]
    assert any("example.org" in line for line in look_at(hurt, tmp_path).console)
