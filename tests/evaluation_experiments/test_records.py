"""The comparison on own records: several splits, other systems, a tuned tau, paired differences, and the page."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.compare import compare
from patients_like_me.evaluation.experiments.engine import claim, rebuild, run_experiment
from patients_like_me.evaluation.experiments.jobs import Plan, plan_experiment
from patients_like_me.evaluation.experiments.page import fill_page
from patients_like_me.evaluation.experiments.paired import parameters_of
from patients_like_me.evaluation.experiments.tau_choice import best_tau, write_choice
from patients_like_me.evaluation.experiments.worker import train_job
from patients_like_me.runs.run import load_run
from patients_like_me.systems.contract import System
from patients_like_me.systems.registry import all_systems

SYSTEMS = ("frequency", "logistic", "random_walk")
ASKED = {
    "tasks": ("readmission",),
    "systems": SYSTEMS,
    "rows": ("vem", "lm_only", *SYSTEMS),
    "splits": (0, 1),
    "taus": (1, 3),
    "against": "lm_only",
}


@pytest.fixture(scope="module")
def records(
    make_plan: Callable[..., Plan],
    tiny_changes: dict[str, object],
    tmp_path_factory: pytest.TempPathFactory,
    two_random_systems: tuple[str, str],
) -> tuple[Plan, Path]:
    """Train the runs of the experiment in this process, as its workers would, and write its folder."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("records") / "out"
    changes = {**tiny_changes, "systems": {"epochs": 2}}
    plan = make_plan("records", out, changes=changes, **ASKED)
    assert len(plan.waiting_for_tau) == 2
    for job in plan.waiting_for_tau:
        train_job(job, None)
        write_choice(job)
    plan = plan_experiment(plan.experiment, plan.cohorts, plan.request)
    assert not plan.waiting_for_tau
    for job in plan.jobs:
        train_job(job, None)
    outcome = run_experiment(plan, workers=1, cache=None)
    assert not outcome.failed
    return plan, out / "records"


def lines_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "table.csv").read_text().splitlines()))


def test_every_row_is_trained_on_every_split(records: tuple[Plan, Path]) -> None:
    plan, _ = records
    assert {(job.variant.name, job.split_seed) for job in plan.jobs} == {
        (name, split) for name in ASKED["rows"] for split in (0, 1)
    }
    assert len({job.folder for job in plan.jobs}) == len(plan.jobs)
    tested = {}
    for job in plan.jobs:
        found = pl.read_parquet(job.folder / "predictions.parquet").filter(split="test")["subject_id"]
        tested.setdefault(job.split_seed, set()).add(frozenset(found))
    assert [len(each) for each in tested.values()] == [1, 1]
    assert tested[0] != tested[1]


def test_tau_is_chosen_for_each_split_on_validation_and_only_where_a_graph_is_used(records: tuple[Plan, Path]) -> None:
    plan, folder = records
    for tuning in plan.tunings:
        content = json.loads(tuning.choice_file.read_text())
        scores = {int(tau): score for tau, score in content["validation"].items()}
        assert set(scores) == {1, 3}
        assert content["tau"] == best_tau(scores)
        taus = {
            job.variant.name: job.settings.graph.tau
            for job in plan.jobs
            if job.split_seed == tuning.split_seed and job.variant.name in ("vem", "lm_only")
        }
        assert taus == {"vem": content["tau"], "lm_only": 2}
    assert "chosen on validation" in (folder / "table.md").read_text()
    assert "chosen on validation among 1, 3" in (folder / "experiment.json").read_text()


def test_tau_without_a_score_cannot_be_chosen() -> None:
    with pytest.raises(PlmError, match="not available on validation"):
        best_tau({1: None, 2: None})


def test_the_table_has_the_numbers_of_the_paired_comparison(records: tuple[Plan, Path]) -> None:
    plan, folder = records
    rows = {
        name: [job.folder for job in plan.jobs if job.variant.name == name] for name in ("lm_only", "logistic", "vem")
    }
    found = compare(
        [path for paths in rows.values() for path in paths],
        across_splits=True,
        row_names=[name for name, paths in rows.items() for _ in paths],
    )
    assert [row.name for row in found.rows] == list(rows)
    records_of_table = {(line["row"], line["column"]): line for line in lines_of(folder)}
    for row in found.rows:
        cell = next(cell for cell in row.cells if cell.measure.name == "auprc")
        assert cell.interval is not None
        line = records_of_table[row.name, "auprc"]
        assert float(line["mean"]) == pytest.approx(cell.value)
        assert (float(line["low"]), float(line["high"])) == pytest.approx((cell.interval.low, cell.interval.high))
        difference = records_of_table[row.name, "auprc against lm_only"]
        if row.name == "lm_only":
            assert difference["mean"] == ""
        else:
            assert cell.difference is not None
            assert float(difference["mean"]) == pytest.approx(cell.difference.value)
    seconds = [load_run(path).results.seconds for path in rows["vem"]]
    assert float(records_of_table["vem", "seconds"]["mean"]) == pytest.approx(sum(seconds) / 2)


def test_parameters_are_those_of_trained_networks(records: tuple[Plan, Path]) -> None:
    plan, folder = records
    from safetensors.numpy import load_file

    found = {job.variant.name: parameters_of(load_run(job.folder)) for job in plan.jobs}
    assert found["frequency"] is found["logistic"] is None
    network = next(job for job in plan.jobs if job.variant.name == "random_walk")
    assert found["random_walk"] == load_file(network.folder / "fitted.safetensors")["weights"].size
    # Predictions of lm_only do not use the weights of the graph network.
    vem = next(job for job in plan.jobs if job.variant.name == "vem")
    phi = sum(array.size for array in load_file(vem.folder / "model" / "phi.safetensors").values())
    assert found["vem"] == (found["lm_only"] or 0) + phi
    shown = {line["row"]: line["mean"] for line in lines_of(folder) if line["column"] == "parameters"}
    assert float(shown["random_walk"]) == found["random_walk"]
    assert shown["logistic"] == ""


def test_tables_are_written_again_from_the_numbers_alone(records: tuple[Plan, Path], tmp_path: Path) -> None:
    _, folder = records
    before = {name: (folder / name).read_text() for name in ("table.md", "table.csv", "table.tex")}
    alone = tmp_path / "out" / "records"
    alone.mkdir(parents=True)
    (alone / "numbers.json").write_text((folder / "numbers.json").read_text())
    rebuild(alone)
    assert {name: (alone / name).read_text() for name in before} == before
    shown = CliRunner().invoke(
        app,
        ["experiment", "records", "--out", str(alone.parent), "--report-only", "--second-best"],
        catch_exceptions=False,
    )
    assert shown.exit_code == 0
    assert "| lm_only |" in shown.stdout
    assert r"\underline{" in (alone / "table.tex").read_text()
    with pytest.raises(PlmError, match=r"no numbers\.json"):
        rebuild(tmp_path / "elsewhere")


def test_a_page_gets_the_tables_that_it_has_a_place_for(records: tuple[Plan, Path], tmp_path: Path) -> None:
    _, folder = records
    tables, _ = rebuild(folder)
    page = tmp_path / "results.md"
    page.write_text("# Mine\n\n<!-- table records-readmission -->\nold\n<!-- end of table -->\n\nlast words\n")
    assert fill_page(page, tables) == []
    first = page.read_text()
    assert first.startswith("# Mine\n")
    assert first.endswith("<!-- end of table -->\n\nlast words\n")
    assert "old" not in first
    assert tables[0].rows[0].heads[0] in first
    fill_page(page, tables)
    assert page.read_text() == first
    page.write_text("# No place\n")
    with pytest.raises(PlmError, match="no place for any of the tables records-readmission"):
        fill_page(page, tables)


def test_more_rows_splits_and_seeds_extend_an_experiment_and_other_settings_do_not(
    records: tuple[Plan, Path], make_plan: Callable[..., Plan], tiny_changes: dict[str, object]
) -> None:
    plan, folder = records
    changes = {**tiny_changes, "systems": {"epochs": 2}}
    more = {**ASKED, "systems": (*SYSTEMS, "repeat"), "rows": (), "splits": (0, 1, 2), "seeds": 2}
    claim(make_plan("records", folder.parent, changes=changes, **more))
    with pytest.raises(PlmError, match="epochs is 2 there and 3 here"):
        claim(make_plan("records", folder.parent, changes={**changes, "systems": {"epochs": 3}}, **ASKED))
    fewer = make_plan("records", folder.parent, changes=changes, **{**ASKED, "taus": ()})
    with pytest.raises(PlmError, match="chosen on validation among 1, 3"):
        claim(fewer)
    assert plan.splits == (0, 1)


def test_settings_of_one_task_and_of_one_system_go_nowhere_else(
    make_plan: Callable[..., Plan], tmp_path: Path, tiny_changes: dict[str, object], two_random_systems: tuple[str, str]
) -> None:
    changes = {
        **tiny_changes,
        "task": {"window_days": 30},
        "tasks": {"readmission": {"epochs": 7, "random_walk": {"epochs": 9}, "task": {"inputs": "known"}}},
        "random_walk": {"width": 8},
        "systems": {"epochs": 3},
    }
    tasks = ("readmission", "length_of_stay")
    plan = make_plan(
        "records",
        tmp_path,
        changes=changes,
        tasks=tasks,
        systems=("random_walk", "random_walk_of_readmission", "frequency"),
    )
    epochs = {(job.task, job.variant.name): getattr(job.settings, "epochs", None) for job in plan.jobs}
    assert epochs["readmission", "vem"] == 7
    assert epochs["length_of_stay", "vem"] == 2
    assert (epochs["readmission", "random_walk"], epochs["length_of_stay", "random_walk"]) == (9, 3)
    assert epochs["readmission", "random_walk_of_readmission"] == 3
    assert epochs["readmission", "frequency"] is None
    assert {job.settings.width for job in plan.jobs if job.variant.name == "random_walk"} == {8}
    assert plan.task_settings["readmission"].window_days == 30  # type: ignore[attr-defined]
    assert (plan.task_settings["readmission"].inputs, plan.task_settings["length_of_stay"].inputs) == (
        "known",
        "retrospective",
    )


def test_a_system_that_cannot_run_is_listed_with_the_reason(
    make_plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_random_systems: tuple[str, str]
) -> None:
    monkeypatch.setattr(
        System,
        "missing_knowledge",
        lambda system, store=None: {"drug_table": "get it somewhere"} if system.name == "logistic" else {},
    )
    plan = make_plan("records", tmp_path, tasks=("length_of_stay",), systems=("all",))
    names = {job.variant.system for job in plan.jobs}
    assert plan.unavailable["logistic"] == "it needs tables that are not installed (drug_table: get it somewhere)"
    assert plan.unavailable["random_walk_of_readmission"] == "it does not serve length_of_stay"
    assert not names & set(plan.unavailable)
    assert names | set(plan.unavailable) == set(all_systems())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": ("vem", "nothing")}, "has no row 'nothing'"),
        ({"systems": ("nothing",)}, "there is no system 'nothing'"),
        ({"changes": {"tasks": {"mortality": {"epochs": 2}}}}, "a task that is not trained"),
        ({"changes": {"random_walk": {"epochs": 2}}}, "'random_walk' is not a row"),
        ({"changes": {"systems": {"epochs": 2}}}, "no system among the rows has a setting 'epochs'"),
    ],
)
def test_mistakes_are_named(
    make_plan: Callable[..., Plan],
    tmp_path: Path,
    two_random_systems: tuple[str, str],
    options: dict[str, object],
    words: str,
) -> None:
    with pytest.raises(PlmError, match=words):
        make_plan("records", tmp_path, **options)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--splits", "many"], "--splits many is not possible"),
        (["--sample", "6000"], "two numbers"),
        (["--tune-tau", "a,b"], "whole numbers"),
    ],
)
def test_numbers_that_are_none_are_refused(
    cohort_folder: Path, tmp_path: Path, words: list[str], expected: str
) -> None:
    command = ["experiment", "records", str(cohort_folder), "--out", str(tmp_path), *words]
    with pytest.raises(PlmError, match=expected):
        CliRunner().invoke(app, command, catch_exceptions=False)
