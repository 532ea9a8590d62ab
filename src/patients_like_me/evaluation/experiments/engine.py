"""Run experiments: claim their folders, warm the cache, choose tau, train what is left, and write the results."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import Findings
from patients_like_me.evaluation.experiments.jobs import Job, Plan, plan_experiment
from patients_like_me.evaluation.experiments.result_table import PREAMBLE, ResultTable, csv_of, table_from_json
from patients_like_me.evaluation.experiments.results import ExperimentResults, FinishedJob
from patients_like_me.evaluation.experiments.runner import JobListener, run_jobs
from patients_like_me.evaluation.experiments.worker import Purpose
from patients_like_me.evaluation.writing import safe_cell
from patients_like_me.files import LOCK, atomic_file, atomic_folder, read_json, waiting_writer, write_json
from patients_like_me.settings import differences_between
from patients_like_me.workers import Workers, number_of_threads

FORMAT: Final = 2
ABOUT: Final = "experiment.json"
NUMBERS: Final = "numbers.json"
_SHOWN_DIFFERENCES: Final = 3
#: Parts of the identity in which rows, tasks or both may be added or left out.
_GROWING: Final = ("task_settings", "rows")


@dataclass(frozen=True)
class Outcome:
    """How an experiment ended: its findings, None where no run finished, and which runs failed."""

    plan: Plan
    folder: Path
    findings: Findings | None
    failed: Mapping[str, str]


def run_experiment(
    plan: Plan,
    *,
    workers: Workers,
    cache: Path | None,
    listener: JobListener | None = None,
) -> Outcome:
    """Train the runs of a plan that are not finished, and write ``OUT/NAME``: tables, figure, the list of runs.

    ``workers`` is how many are trained at the same time on this machine, the address of a cluster, or any executor.
    """
    if plan.experiment.alone and not isinstance(workers, int):
        raise PlmError(
            f"the experiment '{plan.experiment.name}' measures time and memory of runs that are alone on a machine",
            remedy="run it on one machine, with --workers 1",
        )
    claim(plan)
    failed: dict[str, str] = {}
    if tunings := plan.waiting_for_tau:
        _warm(plan, tunings, workers, cache, listener)
        found = _run(plan, tunings, "tune", workers, cache, listener)
        failed = {job.title: problem for job, problem in found.items()}
        plan = plan_experiment(plan.experiment, plan.cohorts, plan.request)
        if plan.waiting_for_tau:
            plan = replace(plan, jobs=tuple(job for job in plan.jobs if not _waits(job, plan.waiting_for_tau)))
    left = [job for job in plan.jobs if (run := plan.run_of(job)) is None or not run.is_finished]
    failures: dict[Job, str] = {}
    if left:
        _warm(plan, left, workers, cache, listener, warmed=tunings)
        failures = _run(plan, left, "train", workers, cache, listener)
    finished = []
    for job in plan.jobs:
        run = None if job in failures else plan.run_of(job)
        if run is not None and run.is_finished:
            finished.append(FinishedJob(job, run))
    failed |= {job.title: problem for job, problem in failures.items()}
    results = ExperimentResults(plan, tuple(finished), failed)
    findings = plan.experiment.summarize(results) if finished or not plan.experiment.grid else None
    if findings is not None:
        marked = tuple(replace(table, second_best=plan.request.second_best) for table in findings.tables)
        findings = replace(findings, tables=marked)
    write_outcome(plan, plan.folder, results, findings)
    return Outcome(plan, plan.folder, findings, failed)


def _waits(job: Job, tunings: Sequence[Job]) -> bool:
    """Tell whether the tau of a job could not be chosen."""
    return getattr(job.settings, "uses_graph", False) and any(
        (each.cohort_folder, each.task, each.backbone, each.split_seed)
        == (job.cohort_folder, job.task, job.backbone, job.split_seed)
        for each in tunings
    )


def _run(
    plan: Plan,
    jobs: Sequence[Job],
    purpose: Purpose,
    workers: Workers,
    cache: Path | None,
    listener: JobListener | None,
) -> dict[Job, str]:
    """Run jobs, one at a time where time and memory are measured; return those that failed."""
    logs = plan.request.out / "failures"
    if not isinstance(workers, int):
        from patients_like_me.evaluation.experiments.cluster import run_jobs_on_cluster

        return run_jobs_on_cluster(jobs, workers=workers, cache=cache, logs=logs, purpose=purpose, listener=listener)
    workers = 1 if plan.experiment.alone or purpose == "warm" else workers
    threads = max(1, number_of_threads() // workers)
    return run_jobs(jobs, workers=workers, threads=threads, cache=cache, logs=logs, purpose=purpose, listener=listener)


def _warm(
    plan: Plan,
    jobs: Sequence[Job],
    workers: Workers,
    cache: Path | None,
    listener: JobListener | None,
    warmed: Sequence[Job] = (),
) -> None:
    """Compute frozen layers that several processes would otherwise compute at the same time."""
    several = not isinstance(workers, int) or workers > 1
    cold = _to_warm(jobs, always=plan.experiment.alone, several=several) if cache is not None else []
    known = {_kind_of_layers(job) for job in warmed}
    _run(plan, [job for job in cold if _kind_of_layers(job) not in known], "warm", workers, cache, listener)


def claim(plan: Plan) -> None:
    """Take ``OUT/NAME`` for an experiment; other settings are refused; more or fewer seeds, splits or rows are not."""
    folder = plan.folder
    refuse_other_folder(plan.request.out)
    if (folder / ABOUT).is_file():
        before = read_json(folder / ABOUT, what="description of an experiment")["identity"]
        if differences := differences_between(*_in_both(before, plan.identity())):
            more = len(differences) - _SHOWN_DIFFERENCES
            listed = "; ".join(differences[:_SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
            raise PlmError(f"'{folder}' has other settings: {listed}", remedy="choose another --out or --name")
        return
    write_json(folder / ABOUT, _about(plan, "running", {}))


def _in_both(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Any, Any]:
    """Leave out tasks and rows that only one of two identities has."""
    first, second = dict(before), dict(now)
    for name in _GROWING:
        for task in set(first.get(name, {})) ^ set(second.get(name, {})):
            first[name], second[name] = (_without(each.get(name, {}), task) for each in (first, second))
    for task in set(first.get("rows", {})):
        for row in set(first["rows"][task]) ^ set(second["rows"][task]):
            for each in (first, second):
                each["rows"] = {**each["rows"], task: _without(each["rows"][task], row)}
    return first, second


def _without(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != name}


def refuse_other_folder(out: Path) -> None:
    """Refuse a folder that holds anything but experiments."""
    if out.exists() and not out.is_dir():
        raise PlmError(f"'{out}' is a file", remedy="choose another --out")
    # A folder that was stopped before anything was written may have empty folders and parts of files.
    files = (path for path in out.rglob("*") if path.is_file() and path.name != LOCK and path.suffix != ".partial")
    if out.is_dir() and any(files) and not ((out / "runs").is_dir() or list(out.glob(f"*/{ABOUT}"))):
        raise PlmError(f"'{out}' exists and does not hold experiments", remedy="choose another --out")


def write_outcome(plan: Plan, folder: Path, results: ExperimentResults, findings: Findings | None) -> None:
    """Write everything an experiment found, at once or not at all."""
    # Two coordinators of one study may end at the same moment.
    with waiting_writer(folder), atomic_folder(folder, replace=True) as temporary:
        status = "incomplete" if results.failed or findings is None else "finished"
        about = _about(plan, status, results.failed)
        write_json(temporary / ABOUT, {**about, "notes": [] if findings is None else list(findings.notes)})
        if plan.jobs:
            _write_runs(temporary / "runs.csv", results, folder.parent)
        if findings is None:
            return
        heading = f"{plan.name}: {plan.experiment.question}"
        notes = notes_of(plan, findings)
        numbers = {
            "format": FORMAT,
            "heading": heading,
            "preset": plan.request.preset,
            "notes": list(notes),
            "tables": [table.as_json() for table in findings.tables],
        }
        write_json(temporary / NUMBERS, numbers)
        for name, text in _texts(heading, findings.tables, notes).items():
            (temporary / name).write_text(text, encoding="utf-8")
        for figure in findings.figures:
            figure.draw(temporary, f"figure{figure.ending}")


def notes_of(plan: Plan, findings: Findings) -> tuple[str, ...]:
    """Return the notes below the tables: the experiment's, the preset, and where it departs from the paper."""
    preset = f"Preset '{plan.request.preset}'."
    departures = f"Not the paper's experiment: {'; '.join(plan.departures)}." if plan.departures else ""
    without = [f"No run for {words}." for words in plan.without_labels]
    return (*findings.notes, *without, *(words for words in (preset, departures) if words))


def rebuild(folder: Path, *, second_best: bool = False) -> tuple[tuple[ResultTable, ...], list[str]]:
    """Write the tables of an experiment again from its numbers; no run is needed. Return tables and notes."""
    if not (folder / NUMBERS).is_file():
        raise PlmError(
            f"'{folder}' has no {NUMBERS} to build tables from", remedy="run the experiment without --report-only"
        )
    content = read_json(folder / NUMBERS, what="list of an experiment's numbers")
    if content.get("format") != FORMAT:
        raise PlmError(
            f"'{folder / NUMBERS}' has format {content.get('format')}, this version reads {FORMAT}",
            remedy="run the experiment again; finished runs are not trained again",
        )
    tables = tuple(replace(table_from_json(table), second_best=second_best) for table in content["tables"])
    for name, text in _texts(content["heading"], tables, content["notes"]).items():
        with atomic_file(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return tables, list(content["notes"])


def _texts(heading: str, tables: Sequence[ResultTable], notes: Sequence[str]) -> dict[str, str]:
    """Return the tables as the contents of three files."""
    latex = "\n".join(table.latex().removeprefix(PREAMBLE) for table in tables)
    below = "".join(f"\n{note}\n" for note in notes)
    return {
        "table.md": f"# {heading}\n\n" + "\n".join(table.markdown() for table in tables) + below,
        "table.csv": csv_of(tables),
        "table.tex": PREAMBLE + latex,
    }


def _about(plan: Plan, status: str, failed: Mapping[str, str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "question": plan.experiment.question,
        "paper": plan.experiment.paper,
        "status": status,
        "identity": plan.identity(),
        "preset": plan.request.preset,
        "departures_from_paper": plan.departures,
        "seeds": 1 + max((job.seed for job in plan.jobs), default=0),
        "splits": list(plan.splits),
        "tau": {job.title: job.chosen_tau for job in plan.tunings},
        "skipped_backbones": dict(plan.skipped),
        "unavailable_systems": dict(plan.unavailable),
        "without_labels": list(plan.without_labels),
        "failed": dict(failed),
    }


def _write_runs(path: Path, results: ExperimentResults, out: Path) -> None:
    """List every finished run with its scores of validation and test; the folder is relative to ``OUT``."""
    scores = list(
        dict.fromkeys(
            (split, metric)
            for result in results.finished
            for split, values in result.run.results.scores.items()
            for metric in values
        )
    )
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        titles = [f"{split}_{metric}" for split, metric in scores]
        writer.writerow(
            ["cohort", "task", "backbone", "row", "split", "seed", *titles, "seconds", "peak_gib", "folder"]
        )
        for result in results.finished:
            job, results_of_run = result.job, result.run.results
            values = [result.score(split, metric) for split, metric in scores]
            writer.writerow(
                [safe_cell(name) for name in (job.cohort, job.task, job.backbone, job.variant.name)]
                + [job.split_seed, job.seed]
                + ["" if value is None else value for value in values]
                + [round(results_of_run.seconds, 2), round(results_of_run.peak_gib, 3)]
                + [job.folder.relative_to(out).as_posix()]
            )


def _to_warm(jobs: Sequence[Job], *, always: bool, several: bool) -> list[Job]:
    """Return a job of each kind whose frozen layers several processes would otherwise compute at once.

    Where time and memory are measured, they are always computed beforehand, by a process that is not measured.
    """
    kinds: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        if job.keeps_layers:
            kinds.setdefault(_kind_of_layers(job), []).append(job)
    return [same[0] for same in kinds.values() if always or (several and len(same) > 1)]


def _kind_of_layers(job: Job) -> tuple[Any, ...]:
    """Return what two jobs must have in common to share their frozen layers."""
    settings = job.settings
    return job.cohort_folder, job.task, settings.backbone, settings.max_tokens, settings.cache_format
