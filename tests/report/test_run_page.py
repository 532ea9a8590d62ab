"""The report on a run: all sections for all kinds of runs, private, well-formed, and in three forms."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report.conftest import RELIGION, HostileHospital
from report.page_checks import Page, check_page
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.explanation import known_pass
from patients_like_me.explanation.references import references_of
from patients_like_me.explanation.scene import set_scene
from patients_like_me.files import sealed, write_json
from patients_like_me.report.run_page import report_run
from patients_like_me.report.run_report import Link, RunReport, Table, Text
from patients_like_me.report.run_sections.coverage import coverage_section, neighbors_of_predictions
from patients_like_me.report.run_sections.examples import EXAMPLES, examples_of_run, spread_examples
from patients_like_me.report.run_sections.faithfulness import faithfulness_section
from patients_like_me.report.run_sections.leakage import leakage_section
from patients_like_me.report.run_sections.material import gather_material
from patients_like_me.report.run_sections.overview import summary_of
from patients_like_me.report.run_sections.performance import subgroups_section
from patients_like_me.report.run_sections.reference_use import reference_use
from patients_like_me.report.tripod import ITEMS
from patients_like_me.runs.run import load_run
from patients_like_me.systems.train import train
from patients_like_me.tasks.audit import Audit
from patients_like_me.tasks.audit_findings import Finding
from patients_like_me.tasks.audit_page import audit_page

RUNS = (("readmission", "cohort"), ("length_of_stay", "bank"), ("drug_recommendation", "bank"))
ORDERED_BY = {
    "readmission": "predicted risk",
    "length_of_stay": "expected length of stay",
    "drug_recommendation": "expected number of drugs",
}
KEYS = (
    "cohort",
    "audit",
    "metrics",
    "calibration",
    "subgroups",
    "faithfulness",
    "hubs",
    "coverage",
    "examples",
    "settings",
    "tripod",
)
NEED_A_GRAPH = ("faithfulness", "hubs", "coverage")
MakeReport = Callable[..., RunReport]


@pytest.fixture(scope="module")
def make_report(finished_run: Callable[..., Path]) -> MakeReport:
    """Return a function that reports on a run of a task, each once."""
    made: dict[tuple[str, ...], RunReport] = {}

    def make(task: str, strategy: str = "vem", references: str = "bank") -> RunReport:
        key = (task, strategy, references)
        if key not in made:
            made[key] = report_run(finished_run(task, strategy=strategy, references=references), replicates=40)
        return made[key]

    return make


def checked(text: str) -> Page:
    """Check a report as every page is checked; it may hold pictures as data and links to pages beside it."""
    plain = re.sub(r'src="data:image/svg\+xml;base64,[A-Za-z0-9+/=]+"', 'src="data:,"', text)
    return check_page(re.sub(r'<a href="explanations/test-\d+\.html">', '<a href="#examples">', plain))


def tables_of(report: RunReport, key: str) -> list[Table]:
    return [block for block in report.section(key).blocks if isinstance(block, Table)]


@pytest.mark.parametrize(("task", "references"), RUNS)
def test_every_section_is_there_and_the_page_is_well_formed(
    task: str, references: str, make_report: MakeReport
) -> None:
    report = make_report(task, references=references)
    assert tuple(section.key for section in report.sections) == KEYS
    assert all(section.applies for section in report.sections)
    page = checked(report.html())
    assert f"From the lowest to the highest {ORDERED_BY[task]}." in page.words
    assert set(KEYS) <= set(page.ids)
    for section in report.sections:
        assert section.title in page.words
    assert all(item.get("role") == "img" for tag, item in page.tags if tag == "svg")
    scrolled = [item for tag, item in page.tags if "scroll" in str(item.get("class", "")).split()]
    assert scrolled
    assert all(item.get("tabindex") == "0" and item.get("aria-label") for item in scrolled)
    policies = [item for tag, item in page.tags if tag == "meta" and item.get("http-equiv")]
    assert "default-src 'none'" in str(policies[0]["content"])


def test_the_numbers_are_those_of_the_evaluation(make_report: MakeReport, finished_run: Callable[..., Path]) -> None:
    run = finished_run("length_of_stay", references="bank")
    report = make_report("length_of_stay")
    scores = load_run(run).results.scores["test"]
    shown = {row[0]: row[2] for row in tables_of(report, "metrics")[0].rows}
    assert shown["AUROC, weighted"] == f"{scores['auroc_weighted']:.3f}"
    assert f"{scores['auroc_weighted']:.3f}" in report.summary[1]


def test_the_report_says_of_the_audit_what_the_audit_says(finished_run: Callable[..., Path]) -> None:
    material = gather_material(finished_run("readmission", strategy="lm_only", references="cohort"), replicates=2)
    warns = Finding("a check", "warning", 30, 20, "things")
    warned = replace(material, audit=Audit("readmission", "a title", {}, [warns]))
    sentence = "No leak is certain, but 1 of 1 checks of the leakage audit warns"
    assert any(said.startswith(f"{sentence} (a check)") for said in summary_of(warned))
    first = leakage_section(warned).blocks[0]
    assert isinstance(first, Text)
    assert first.words.startswith(sentence)
    assert first.tone == "warning"
    assert sentence in audit_page(warned.audit, material.run.cohort)


def test_a_run_without_a_graph_says_what_does_not_apply(make_report: MakeReport) -> None:
    report = make_report("readmission", strategy="lm_only", references="cohort")
    assert {section.key for section in report.sections if not section.applies} == set(NEED_A_GRAPH)
    page = checked(report.html())
    assert page.words.count("Does not apply") == len(NEED_A_GRAPH)
    assert len(tables_of(report, "examples")[0].rows) == EXAMPLES
    assert "support" not in tables_of(report, "examples")[0].columns


def test_a_graph_beyond_the_memory_leaves_out_what_its_references_do_and_says_so(
    finished_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_pass, "_BYTES_PER_ENTRY", 1 << 40)
    said: list[str] = []
    report = report_run(finished_run("readmission", references="bank"), replicates=2, report=said.append)
    assert {section.key for section in report.sections if not section.applies} == {"faithfulness"}
    reasons = [line for line in (*report.summary, *said) if "needs about" in line and "GiB of memory are free" in line]
    assert len(reasons) == 2
    page = checked(report.html())
    assert "what the references do to predictions is not in this report" in page.words
    assert len(tables_of(report, "examples")[0].rows) == EXAMPLES


def test_a_system_without_references_is_reported_too(cohort_folder: Path, tmp_path: Path) -> None:
    run = train(cohort_folder, "readmission", tmp_path / "plain", system="frequency")
    report = report_run(run.folder, replicates=20)
    assert {section.key for section in report.sections if not section.applies} == set(NEED_A_GRAPH)
    assert "A system without references has no patient pages." in checked(report.html()).words
    assert report.run == "frequency"


def test_references_that_bring_their_outcomes_are_reported_like_neighbours(cohort_folder: Path, tmp_path: Path) -> None:
    small = {"own_path": ["linear"], "folds": 2, "k": [20], "powers": [1.0], "gate_penalties": [0.03]}
    used = train(
        cohort_folder, "readmission", tmp_path / "used", system="references", settings={**small, "may_stay_out": False}
    )
    report = report_run(used.folder, replicates=20)
    assert all(section.applies for section in report.sections)
    words = checked(report.html()).words
    assert re.search(r"with the largest shares the probabilities move by .* points on average \(95 % interval", words)
    assert "a planted outcome is not heard by its own patient" in words
    assert [row[0] for row in tables_of(report, "faithfulness")[0].rows] == ["1", "3", "10"]
    # Its language model is off, whatever the length of a prompt would be.
    entering = next(str(row[3]) for row in tables_of(report, "tripod")[0].rows if row[0] == "12b")
    assert entering.startswith("codes as present or absent")
    assert "tokens" not in entering
    without = {**small, "control": "no_references"}
    left_out = train(cohort_folder, "readmission", tmp_path / "out", system="references", settings=without)
    report = report_run(left_out.folder, replicates=20)
    assert {section.key for section in report.sections if not section.applies} == set(NEED_A_GRAPH)
    assert "no prediction uses one" in checked(report.html()).words


def test_every_tripod_item_is_answered_and_gaps_are_named(make_report: MakeReport) -> None:
    rows = tables_of(make_report("drug_recommendation"), "tripod")[0].rows
    assert [row[0] for row in rows] == [item.number for item in ITEMS]
    answers = {row[0]: (row[2], row[3]) for row in rows}
    assert answers["17"][0] == "gap"
    assert answers["23a"] == ("known", "see Metrics, Calibration and Subgroups")
    assert all(status in ("known", "partly", "gap", "not applicable") and words for status, words in answers.values())


def test_tripod_says_what_the_records_do_not_tell(make_report: MakeReport) -> None:
    """The tiny hospital has given labels, neither dates nor sites, and no procedure."""
    rows = tables_of(make_report("length_of_stay"), "tripod")[0].rows
    answers = {str(row[0]): (row[2], str(row[3])) for row in rows}
    assert answers["6c"][1].startswith("medications are inputs or the outcome; no procedures are in the cohort")
    assert answers["8b"] == (
        "gap",
        "the outcome was given with the records; who judged it: not known from these records",
    )
    assert answers["12b"][1].startswith("as text, names of codes")
    assert answers["12d"] == ("gap", "hospitals: not known from these records (no visit has a site)")
    assert "the records have no dates" in answers["26"][1]
    assert "procedures: not in these records" in answers["26"][1]
    assert answers["27b"][1].startswith("diagnoses and medications of the current visit and of earlier ones")


def test_no_count_of_people_under_eleven_is_shown(make_report: MakeReport) -> None:
    for task, references in RUNS:
        report = make_report(task, references=references)
        for key in ("cohort", "metrics", "subgroups", "hubs", "coverage"):
            for table in tables_of(report, key):
                columns = [
                    number
                    for number, name in enumerate(table.columns)
                    if name in ("patients", "instances", "visits", "visits left out", "shown to test patients")
                ]
                for row in table.rows:
                    for cell in (str(row[number]) for number in columns):
                        assert cell in ("hidden", "fewer than 11", "0") or int(cell.replace(",", "")) >= 11


def test_a_hidden_share_of_instances_without_references_is_told_nowhere(finished_run: Callable[..., Path]) -> None:
    material = gather_material(finished_run("readmission", references="cohort"), replicates=5)
    neighbors = neighbors_of_predictions(material)
    without = material.group(neighbors == 0)
    assert without.is_small or not without.instances
    few = np.where(np.arange(len(neighbors)) < 1, 0, np.maximum(neighbors, 1))
    assert material.use is not None
    assert material.scene is not None
    # The order of the graph and that of the evaluation differ; one instance loses its references.
    ids = material.scene.graph.instance_ids[-len(neighbors) :]
    place = {instance: number for number, instance in enumerate(material.evaluation.predictions.instance_ids)}
    changed = replace(material, use=replace(material.use, neighbors=few[[place[instance] for instance in ids]]))
    assert neighbors_of_predictions(changed).tolist() == few.tolist()
    everyone = coverage_section(changed).blocks[1]
    assert isinstance(everyone, Table)
    assert everyone.rows[0][2:] == ("hidden", "hidden", "hidden")
    assert not any("have reference patients" in sentence for sentence in summary_of(changed))
    words = faithfulness_section(changed).blocks[0]
    assert "Nearly all test instances have references." in str(words)


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_references_counted_at_once_are_those_counted_one_by_one(
    references: str, finished_run: Callable[..., Path]
) -> None:
    scene = set_scene(load_run(finished_run("readmission", references=references)))
    for most in (2, 10):
        use = reference_use(scene, most=most)
        for number, row in enumerate(scene.own_rows.tolist()):
            node = scene.node_of_row(row)
            expected = references_of(scene, node, most=most)
            found = use.reference[use.target == number]
            cosines = scene.cosines_to(node)
            assert np.allclose(sorted(cosines[found]), sorted(reference.cosine for reference in expected))
            assert use.neighbors[number] == scene.graph.degrees[node]
    audiences = use.audiences
    assert list(audiences.values()) == sorted(audiences.values(), reverse=True)
    assert sum(audiences.values()) == len(set(zip(use.reference_patient, use.target_patient, strict=True)))


def test_examples_are_spread_over_the_risk_and_over_patients() -> None:
    generator = np.random.default_rng(0)
    risk, patients = generator.random(200), generator.integers(0, 60, 200)
    found = spread_examples(risk, patients)
    assert len(found) == EXAMPLES == len(set(patients[found]))
    assert risk[found].tolist() == sorted(risk[found])
    assert risk[found[0]] < 0.2 < 0.8 < risk[found[-1]]
    assert len(spread_examples(risk[:3], np.array([1, 1, 2]))) == 2


def test_examples_link_to_the_pages_beside_the_report(finished_run: Callable[..., Path], tmp_path: Path) -> None:
    run = finished_run("drug_recommendation", references="bank")
    first, *others = examples_of_run(run)
    (tmp_path / "explanations").mkdir()
    (tmp_path / "explanations" / f"test-{first}.html").write_text("a page")
    out = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["report", str(run), "--out", str(out), "--replicates", "20"])
    assert result.exit_code == 0, result.output
    assert str(out) in result.output.replace("\n", "")
    text = out.read_text(encoding="utf-8")
    assert re.findall(r'href="(explanations/[^"]+)"', text) == [f"explanations/test-{first}.html"]
    checked(text)
    report = report_run(run, pages=tmp_path, replicates=20)
    names = [row[0] for row in tables_of(report, "examples")[0].rows]
    assert isinstance(names[0], Link)
    assert names[1:] == [str(number) for number in others]


@pytest.mark.parametrize("ending", ["json", "md"])
def test_the_other_forms_say_the_same(ending: str, finished_run: Callable[..., Path], tmp_path: Path) -> None:
    run, out = finished_run("readmission", references="bank"), tmp_path / f"report.{ending}"
    result = CliRunner().invoke(app, ["report", str(run), "--out", str(out), "--replicates", "20"])
    assert result.exit_code == 0, result.output
    text = out.read_text(encoding="utf-8")
    if ending == "json":
        sections = json.loads(text)["sections"]
        assert [section["key"] for section in sections] == list(KEYS)
        assert "<svg" not in text
    else:
        assert re.findall(r"^## (.+)$", text, re.MULTILINE)[0] == "Cohort"
        assert len(re.findall(r"^## ", text, re.MULTILINE)) == len(KEYS)


def secrets_in(text: str, hospital: HostileHospital) -> list[str]:
    plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'").replace("\\", "")
    found = [secret for secret in (*hospital.subjects, *hospital.visits, *hospital.dates, RELIGION) if secret in plain]
    found += re.findall(r"SUBJ\S+|VISIT\S*\d{3}_\d|\b21[5-6]\d-\d\d", plain)
    return found + re.findall(r"Hospital visits so far|ICU visits|Task: |Output format|/tmp/\S+|91 years", plain)


def test_no_identifier_date_text_or_path_is_in_any_form(
    hostile_hospital: HostileHospital, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        report = report_run(hostile_hospital.run, replicates=20, report=said.append)
    for form, text in {"html": report.html(), "json": report.json(), "markdown": report.markdown()}.items():
        assert secrets_in(text, hostile_hospital) == [], form
        assert "\x1b" not in text
    assert secrets_in(caplog.text + "\n".join(said), hostile_hospital) == []
    page = checked(report.html())
    assert not {"script", "b"} & {tag for tag, _ in page.tags}


def test_hostile_strata_stay_text_and_rare_ones_are_not_named(
    finished_run: Callable[..., Path], make_report: MakeReport
) -> None:
    run = finished_run("readmission", references="cohort")
    material = gather_material(run, replicates=5)
    groups = material.evaluation.subgroups
    hostile = replace(next(group for group in groups if not group.is_hidden), stratum="<img src=x onerror=alert(1)>")
    rare = replace(hostile, stratum="the only one of his kind", instances=None, patients=None, measures=())
    changed = replace(material, evaluation=replace(material.evaluation, subgroups=(hostile, rare)))
    report = replace(make_report("readmission", references="cohort"), sections=(subgroups_section(changed),))
    page = checked(report.html())
    assert "<img src=x onerror=alert(1)>" in page.words
    assert "img" not in {tag for tag, _ in page.tags}
    assert "the only one of his kind" not in report.html() + report.json() + report.markdown()
    assert not re.search(r"(?<!\\)<img", report.markdown())


def test_a_moved_cohort_is_found_and_mistakes_are_named(
    finished_run: Callable[..., Path], cohort_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run("readmission", references="bank"), run)
    about = json.loads((run / "run.json").read_text())
    write_json(run / "run.json", sealed(about | {"cohort_folder": str(tmp_path / "gone")}))
    words = ["report", str(run), "--replicates", "20"]
    missing = CliRunner().invoke(app, words)
    assert isinstance(missing.exception, PlmError)
    assert "--cohort" in str(missing.exception)
    assert CliRunner().invoke(app, [*words, "--cohort", str(cohort_folder)]).exit_code == 0
    assert (run / "report.html").is_file()
    wrong = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "report.pdf")])
    assert ".html, .json or .md" in str(wrong.exception)
