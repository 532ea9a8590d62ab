"""A hospital of a million: ingest, graph, bank, newcomers, predictions and pages, each stage in a process of its own.

The stages hand on folders, as their commands do. Diagnoses are drawn (22 per visit on average), every eighth visit is a
second one; weights are first weights and embeddings random numbers: what was learned does not change the work. The time
of the language model is not here, it grows with the instances (``plm plan --patients``).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
from _measure import measure
from graph import own_peak_gib, seconds_of

from patients_like_me.graph import GraphSettings, PatientGraph, build_graph
from patients_like_me.graph.blocks import compute_blocks, merge_blocks, plan_blocks
from patients_like_me.graph.build import PartRows, parts_of
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.systems.contract import Account, Fitted, RunContext
from patients_like_me.systems.problem import Problem
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

TASK = "readmission"
#: Nearly everybody is in the bank; every visit is an instance, not only those that another one follows.
TASK_CHANGES = {"split_shares": (0.98, 0.01, 0.01), "population": "discharged_alive"}
NEWCOMERS, PREDICTED, PAGES = 60, 100, 5
_VISITS_PER_FILE = 200_000


def write_tables(folder: Path, instances: int) -> None:
    """Write own tables of so many visits, a file of events for every 200,000 of them."""
    from patients_like_me.codes.ccs import ccs_categories

    sets = drawn_sets(instances)
    generator = np.random.default_rng(1)
    first = instances - instances // 8
    stays = generator.integers(1, 12, first)
    came = generator.integers(0, 3000, first)
    back = np.arange(instances - first) * 7
    # Half of those who come back do so within the window of the task.
    again = came[back] + stays[back] + np.where(np.arange(len(back)) % 2, 60, 4)
    people = np.concatenate([np.arange(first), back])
    admitted = np.concatenate([came, again])
    left = admitted + np.concatenate([stays, np.full(len(back), 3)])
    day = pl.lit(datetime(2100, 1, 1)).dt.offset_by
    visits = pl.DataFrame({"person": people, "visit": np.arange(instances), "admitted": admitted, "left": left}).select(
        subject_id=pl.format("p{}", "person"),
        visit_id=pl.format("v{}", "visit"),
        admission_time=day(pl.format("{}d", "admitted")).dt.strftime("%Y-%m-%d %H:%M:%S"),
        discharge_time=day(pl.format("{}d", "left")).dt.strftime("%Y-%m-%d %H:%M:%S"),
        sex=pl.when(pl.col("person") % 2 == 0).then(pl.lit("F")).otherwise(pl.lit("M")),
        age=(pl.col("person") % 70 + 20).cast(pl.String),
    )
    folder.mkdir(parents=True)
    visits.write_parquet(folder / "visits.parquet")
    categories = ccs_categories("diagnosis")["ccs"].to_list()
    names = pl.Series([categories[number % len(categories)] for number in range(len(sets.vocabulary))])
    (folder / "events").mkdir()
    for number, start in enumerate(range(0, instances, _VISITS_PER_FILE)):
        rows = slice(int(sets.indptr[start]), int(sets.indptr[min(start + _VISITS_PER_FILE, instances)]))
        sizes = np.diff(sets.indptr[start : min(start + _VISITS_PER_FILE, instances) + 1])
        pl.DataFrame({"visit": np.repeat(np.arange(start, start + len(sizes)), sizes)}).select(
            visit_id=pl.format("v{}", "visit"),
            kind=pl.lit("diagnosis/ccs"),
            code=names.gather(sets.codes[rows]),
        ).write_parquet(folder / "events" / f"events-{number:04d}.parquet")


def measure_ingest(folder: Path, instances: int) -> dict[str, Any]:
    """Write the tables of a hospital and let ``plm prepare`` read them."""
    written, _ = seconds_of(lambda: write_tables(folder / "tables", instances))
    words = [sys.executable, "-m", "patients_like_me", "prepare", "tables", str(folder / "tables")]
    prepared = measure([*words, "--out", str(folder / "cohort")], PLM_CODES=str(folder / "codes"))
    return {
        "tables_seconds": written,
        "ingest_seconds": prepared.seconds,
        "ingest_peak_gib": prepared.peak_gib,
        "ingest_disk_gib": _gib_below(folder / "cohort"),
    }


def measure_graph(folder: Path, rows: int | None) -> dict[str, Any]:
    """Build the graph of a cohort on disk, or compare a sample of its rows with all columns."""
    build_graph(_bank_sets(1_000), _settings()[0].graph)
    seconds, instances = seconds_of(lambda: _instances(folder))
    sets = instances.diagnosis_sets
    found: dict[str, Any] = {
        "instances": len(sets),
        "instances_seconds": seconds,
        "instances_peak_gib": own_peak_gib(),
        "graph_rows_measured": rows or len(sets),
    }
    settings: GraphSettings = _settings()[0].graph
    if rows is not None:
        return found | _sampled_graph(sets, settings, rows)
    cpu, started = time.process_time(), time.perf_counter()
    plan = plan_blocks(sets, settings, folder / "blocks", rows_per_block=65_536)
    compute_blocks(plan)
    graph = merge_blocks(plan, folder / "graph")
    found["graph_seconds"] = time.perf_counter() - started
    found["graph_cpu_seconds"] = time.process_time() - cpu
    found["graph_peak_gib"] = own_peak_gib()
    found["graph_disk_gib"] = _gib_below(folder / "graph")
    found["graph_blocks_gib"] = _gib_below(folder / "blocks")
    found["graph_entries"] = len(graph.neighbors)
    found["prediction_seconds"] = prediction_seconds(graph)
    found["prediction_peak_gib"] = own_peak_gib()
    return found


def _sampled_graph(sets: DiagnosisSets, settings: GraphSettings, rows: int) -> dict[str, Any]:
    """Compare about so many rows, spread over all, with all columns; the time is scaled to all rows."""
    part, cpu = parts_of(sets, settings.references)[0], time.process_time()
    built, opened = seconds_of(lambda: PartRows(sets, part, settings))
    built_cpu = time.process_time() - cpu
    spent, cpu, step = 0.0, time.process_time(), 2048
    firsts = np.linspace(0, len(part.rows) - step, max(1, rows // step)).astype(int)
    for first in firsts:
        spent += seconds_of(lambda first=first: opened.find(int(first), int(first) + step))[0]
    scale = len(sets) / (len(firsts) * step)
    # The blocks of all rows are merged one stretch at a time: their entries do not count into the peak.
    return {
        "graph_rows_measured": len(firsts) * step,
        "graph_seconds": built + spent * scale,
        "graph_cpu_seconds": built_cpu + (time.process_time() - cpu) * scale,
        "graph_peak_gib": own_peak_gib(),
    }


def prediction_seconds(graph: PatientGraph) -> float:
    """Return the seconds of one pass of the graph network over a whole graph."""
    import torch

    from patients_like_me.model.gcn import GraphNetwork
    from patients_like_me.model.propagation import FixedPropagation
    from patients_like_me.model.settings import GraphNetworkSettings

    network = GraphNetwork(128, 1, GraphNetworkSettings()).eval()
    small = build_graph(_bank_sets(500), graph.settings)
    with torch.no_grad():
        for each in (small, graph):
            propagation, embeddings = FixedPropagation.of_graph(each), torch.zeros(len(each), 128)
            seconds, _ = seconds_of(
                lambda embeddings=embeddings, propagation=propagation: network(embeddings, propagation)
            )
    return seconds


def measure_bank(folder: Path) -> dict[str, Any]:
    """Write a run whose bank is the training split of the cohort."""
    from patients_like_me.systems import train as training
    from patients_like_me.systems.registry import find_system

    graph = PatientGraph.load(folder / "graph", verify=False)
    settings, of_task = _settings()
    drawn = replace(find_system("patients_like_me"), fit=_drawn_fit(graph))
    # Drawn scores are no predictions, so they cannot be compared with any.
    with patch.multiple(training, find_system=lambda _: drawn, _refuse_other_predictions=lambda *_: None):
        seconds, _ = seconds_of(
            lambda: training.train(folder / "cohort", TASK, folder / "run", settings=settings, task_settings=of_task)
        )
    return {"bank_seconds": seconds, "bank_peak_gib": own_peak_gib(), "bank_disk_gib": _gib_below(folder / "run")}


def _drawn_fit(graph: PatientGraph) -> Callable[[Problem, RunContext], Fitted]:
    """Return a fit that takes first weights, random embeddings and a graph that is there."""

    def fit(problem: Problem, run: RunContext) -> Fitted:
        from patients_like_me.model.joint import PatientsLikeMeModel
        from patients_like_me.runs.record import GraphSummary
        from patients_like_me.systems.patients_like_me import _bank_of
        from patients_like_me.training.preparation import model_settings
        from patients_like_me.training.trained import TrainedModel

        settings, instances = run.settings, problem.instances
        model = PatientsLikeMeModel.build(model_settings(instances, settings), seed=0)
        generator = np.random.default_rng(2)
        width = model.settings.embedding_width
        parts = {"bank": problem.train, "validation": problem.validation, "test": problem.test}
        drawn = {name: generator.random((len(rows), width), dtype=np.float32) - 0.5 for name, rows in parts.items()}
        bank = drawn.pop("bank")
        trained = TrainedModel.of(model, settings, _bank_of(instances, problem, graph, settings, bank))
        run.begin()
        logits = generator.normal(size=(len(problem.evaluated), problem.outputs))
        summary = GraphSummary(edges=trained.bank.graph.edges, splits={})
        return Fitted(settings, drawn, account=Account(graph=summary), state=trained, evaluated=logits)

    return fit


def measure_use(folder: Path) -> dict[str, Any]:
    """Open the run; find the references of newcomers, predict some, and write pages about a few."""
    from patients_like_me.explanation.decision import decision_of_run
    from patients_like_me.report.patient_page import patient_page
    from patients_like_me.runs.run import load_run
    from patients_like_me.serve.model_state import OpenedModel

    seconds, model = seconds_of(lambda: OpenedModel(load_run(folder / "run"), "benchmark"))
    graph = model.predictor.fitted.state.bank.graph
    # Drawing a newcomer takes longer than linking one.
    new, *others = [_newcomer(number) for number in range(NEWCOMERS + 1)]
    first, links = seconds_of(lambda: graph.link(new, patients="new"))
    assert len(links.neighbors), "the newcomer has codes that the bank does not know"
    spent = [seconds_of(lambda newcomer=newcomer: graph.link(newcomer, patients="new"))[0] for newcomer in others]
    found = {
        "bank_open_seconds": seconds,
        "newcomer_ms": 1000 * statistics.median(spent),
        "newcomer_first_seconds": first,
        "newcomer_peak_gib": own_peak_gib(),
    }
    # The quick form has a small bank, and less than a minute.
    number = PREDICTED if len(graph) > 100_000 else PREDICTED // 5
    some = _new_cohort(number)
    model.predictor.predict(_new_cohort(2))
    predicted, frame = seconds_of(lambda: model.predictor.predict(some))
    assert frame.height == number
    found |= {"predict_ms_each": 1000 * predicted / number, "predict_peak_gib": own_peak_gib()}
    opened, answering = seconds_of(lambda: model.answering)
    decision = decision_of_run(model.run, newcomers=True)
    pages = []
    for place in range(PAGES + 1):
        person = model.instances_of(_new_cohort(1, seed=place))
        pages.append(seconds_of(lambda person=person: patient_page(answering.explain(person, decision)))[0])
    return found | {
        "page_open_seconds": opened + pages[0],
        "page_ms": 1000 * statistics.median(pages[1:]),
        "page_peak_gib": own_peak_gib(),
    }


def measure_report(folder: Path) -> dict[str, Any]:
    """Let ``plm report`` write the page about the run, with 200 resamples."""
    words = [sys.executable, "-m", "patients_like_me", "report", str(folder / "run"), "--replicates", "200"]
    written = measure([*words, "--out", str(folder / "report.html")], PLM_CODES=str(folder / "codes"))
    return {"report_seconds": written.seconds, "report_peak_gib": written.peak_gib}


STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    "ingest": measure_ingest,
    "graph": measure_graph,
    "bank": measure_bank,
    "use": measure_use,
    "report": measure_report,
}


def _settings() -> Any:
    from patients_like_me.systems.choosing import chosen_settings

    return chosen_settings(TASK, "quick", system="patients_like_me", task_changes=TASK_CHANGES)


def _instances(folder: Path) -> Any:
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.registry import find_task

    cohort = Cohort.load(folder / "cohort")
    instances = build_instances(cohort, find_task(TASK, cohort), _settings()[1])
    _ = instances.diagnosis_sets
    return instances


def _bank_sets(instances: int) -> DiagnosisSets:
    return replace(drawn_sets(instances), splits=np.full(instances, "train"))


def _newcomer(number: int) -> DiagnosisSets:
    return replace(drawn_sets(1, seed=500 + number), instance_ids=(f"new {number}",))


def _new_cohort(patients: int, seed: int = 0) -> Any:
    """Return patients whom nobody has seen, as a cohort."""
    from patients_like_me.codes.ccs import ccs_categories
    from patients_like_me.records.newcomers import cohort_of_newcomers

    categories = ccs_categories("diagnosis")["ccs"].to_list()
    sets = drawn_sets(patients, seed=9 + seed)
    people = []
    for number in range(patients):
        codes = [f"ccs:{categories[int(code) % len(categories)]}" for code in sets.of(number)]
        visit = {"admission": "2110-03-01", "discharge": "2110-03-08", "diagnoses": codes}
        people.append({"age": 40 + number % 40, "sex": "F" if number % 2 else "M", "visits": [visit]})
    return cohort_of_newcomers(people)


def _gib_below(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**30
