"""No id, date or text of a patient leaves unless it is asked for, and hostile strings stay strings."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from report.conftest import ETHNICITY, RELIGION, HostileHospital
from report.page_checks import check_page
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.explanation.scene import Scene, set_scene
from patients_like_me.explanation.what_if import Change
from patients_like_me.report.patient_page import patient_markdown, patient_page
from patients_like_me.runs.run import load_run


@pytest.fixture(scope="module")
def scene(hostile_hospital: HostileHospital) -> Scene:
    return set_scene(load_run(hostile_hospital.run))


def texts_of(found: Explanation) -> dict[str, str]:
    return {"html": patient_page(found), "json": found.json(), "markdown": patient_markdown(found)}


def secrets_in(text: str, hospital: HostileHospital) -> Iterator[str]:
    """Find every id, date and demographic text, as it is and in every escaped form."""
    plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'").replace("\\", "")
    for secret in (*hospital.subjects, *hospital.visits, *hospital.dates, ETHNICITY, RELIGION):
        if secret in plain or secret.lower() in plain.lower():
            yield secret
    yield from re.findall(r"SUBJ\S+|VISIT\S*\d{3}_\d|\b21[5-6]\d-\d\d", plain)
    yield from re.findall(r"Hospital visits so far|ICU visits|Task: |Output format|Ethnicity", plain)


def rows_with_references(scene: Scene) -> list[int]:
    return [row for row in scene.own_rows.tolist() if scene.graph.degrees[scene.node_of_row(row)]]


def test_no_identifier_date_or_text_is_in_any_form(
    scene: Scene, hostile_hospital: HostileHospital, caplog: pytest.LogCaptureFixture
) -> None:
    rows = rows_with_references(scene)
    assert len(rows) > 3
    with caplog.at_level(logging.DEBUG):
        for row in rows[:4]:
            remove = scene.graph.sets.of(scene.node_of_row(row))[:1]
            found = explain(scene, row, change=Change(drop=("R1",), remove=remove))
            assert found.references
            assert found.counter_references
            for form, text in texts_of(found).items():
                assert list(secrets_in(text, hostile_hospital)) == [], form
            assert "91 years" not in found.json()
    assert list(secrets_in(caplog.text, hostile_hospital)) == []


def test_days_and_grouped_ages_take_the_place_of_dates_and_ages(scene: Scene) -> None:
    found = [explain(scene, row) for row in rows_with_references(scene)]
    people = [person.person for item in found for person in item.references] + [item.patient for item in found]
    assert any(visit.day and visit.day < 0 for person in people for visit in person.visits)
    assert "90 or older" in {person.age for person in people}
    years = [int(person.age.split()[0]) for person in people if person.age.endswith("years")]
    assert years
    assert max(years) <= 89


def test_ids_are_shown_where_they_are_asked_for(scene: Scene, hostile_hospital: HostileHospital) -> None:
    row = rows_with_references(scene)[0]
    found = explain(scene, row, show_ids=True)
    visit = scene.instances.instance_ids[row]
    assert json.loads(found.json())["patient"]["instance_id"] == visit
    for form, text in texts_of(found).items():
        assert visit in set(secrets_in(text, hostile_hospital)), form
    page = check_page(patient_page(found))
    assert visit in page.words
    assert any(subject in page.words for subject in hostile_hospital.subjects)
    assert not any(date in page.words for date in hostile_hospital.dates)


def test_hostile_names_stay_text(scene: Scene) -> None:
    for show_ids in (False, True):
        found = explain(scene, rows_with_references(scene)[0], show_ids=show_ids)
        page = check_page(patient_page(found))
        assert "<script>alert('name')</script>" in page.words
        assert "{{ 7*7 }}" in page.words
        assert not {"script", "b", "img"} & {tag for tag, _ in page.tags}
        for form, text in texts_of(found).items():
            assert "\x1b" not in text, form
        markdown = patient_markdown(found)
        assert not re.search(r"(?<!\\)<(script|img|b)", markdown)
        assert "\\<script\\>" in markdown


def test_the_command_prints_and_logs_no_identifier(hostile_hospital: HostileHospital, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["explain", str(hostile_hospital.run), "--example", "1", "--out", str(tmp_path / "p.html")]
    )
    assert result.exit_code == 0, result.output
    assert "own record alone" in result.output or "Similar patients" in result.output
    assert list(secrets_in(result.output + result.stderr, hostile_hospital)) == []
    assert "\x1b[31m" not in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["p.html"]


@pytest.mark.parametrize("ending", ["html", "json", "md"])
def test_the_command_writes_the_form_of_the_ending(
    ending: str, hostile_hospital: HostileHospital, scene: Scene, tmp_path: Path
) -> None:
    row = rows_with_references(scene)[0]
    visit = scene.instances.instance_ids[row]
    out = tmp_path / f"page.{ending}"
    words = ["explain", str(hostile_hospital.run), "--instance", visit, "--out", str(out), "--drop", "r1", "--tau", "2"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "What if" in result.output
    text = out.read_text(encoding="utf-8")
    assert list(secrets_in(text, hostile_hospital)) == []
    assert text.lstrip().startswith({"html": "<!DOCTYPE", "json": "{", "md": "# "}[ending])


def test_without_a_name_the_page_lies_in_the_run_under_its_number(hostile_hospital: HostileHospital) -> None:
    result = CliRunner().invoke(app, ["explain", str(hostile_hospital.run), "--example", "2", "--split", "validation"])
    assert result.exit_code == 0, result.output
    assert (hostile_hospital.run / "explanations" / "validation-2.html").is_file()


def test_a_wrong_ending_or_an_unknown_instance_is_named(hostile_hospital: HostileHospital, tmp_path: Path) -> None:
    run = str(hostile_hospital.run)
    for words, message in (
        (["--example", "1", "--out", str(tmp_path / "p.pdf")], r"must end in \.html, \.json or \.md, got"),
        (["--instance", "VISIT-unknown"], "--example 1"),
        ([], "--instance"),
        (["--example", "1", "--drug", "A10A"], "--drug means nothing"),
        (["--example", "1", "--split", "train"], "validation or test"),
    ):
        result = CliRunner().invoke(app, ["explain", run, *words])
        assert isinstance(result.exception, PlmError)
        assert re.search(message, str(result.exception))
        assert list(secrets_in(str(result.exception), hostile_hospital)) == []


def test_the_command_line_starts_without_slow_imports() -> None:
    import subprocess

    code = (
        "import sys, patients_like_me.cli; sys.exit(any(name in sys.modules for name in ('torch', 'polars', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
