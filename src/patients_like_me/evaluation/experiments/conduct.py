"""Conduct experiments: claim their folders, warm the cache, train what is left, and write tables and figures."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import Findings
from patients_like_me.evaluation.experiments.jobs import Job, Plan
from patients_like_me.evaluation.experiments.result_table import csv_of
from patients_like_me.evaluation.experiments.results import Result, Results
from patients_like_me.evaluation.experiments.runner import Onlooker, run_jobs
from patients_like_me.files import atomic_folder, read_json, write_json
from patients_like_me.settings import differences_between
from patients_like_me.workers import number_of_threads

FORMAT: Final = 1
ABOUT: Final = "experiment.json"
_SHOWN_DIFFERENCES: Final = 3


@dataclass(frozen=True)
class Outcome:
    """How an experiment ended: its findings, None where no run finished, and which runs failed."""

    plan: Plan
    folder: Path
    findings: Findings | None
    failed: Mapping[str, str]


def conduct(
    plan: Plan,
    out: Path,
    *,
    workers: int,
    cache: Path | None,
    onlooker: Onlooker | None = None,
) -> Outcome:
    """Train the runs of a plan that are not finished, and write ``OUT/NAME``: tables, figure, the list of runs."""
    folder = out / plan.experiment.name
    claim(plan, out)
    left = [job for job in plan.jobs if (run := plan.run_of(job)) is None or not run.is_finished]
    failures: dict[Job, str] = {}
    if left:
        workers = 1 if plan.experiment.alone else workers
        threads = max(1, number_of_threads() // workers)
        logs = out / "failures"
        warmed = _to_warm(left, always=plan.experiment.alone, workers=workers) if cache is not None else []
        run_jobs(
            warmed,
            workers=1,
            threads=number_of_threads(),
            cache=cache,
            logs=logs,
            purpose="warm",
            onlooker=onlooker,
        )
        failures = run_jobs(left, workers=workers, threads=threads, cache=cache, logs=logs, onlooker=onlooker)
    finished = []
    for job in plan.jobs:
        run = None if job in failures else plan.run_of(job)
        if run is not None and run.is_finished:
            finished.append(Result(job, run))
    failed = {job.title: problem for job, problem in failures.items()}
    results = Results(plan, tuple(finished), failed)
    findings = plan.experiment.summarize(results) if finished or not plan.experiment.grid else None
    write_outcome(plan, folder, results, findings)
    return Outcome(plan, folder, findings, failed)


def claim(plan: Plan, out: Path) -> None:
    """Take ``OUT/NAME`` for an experiment; one with other settings is refused, more or fewer seeds are not."""
    folder = out / plan.experiment.name
    refuse_other_folder(out)
    if (folder / ABOUT).is_file():
        before = read_json(folder / ABOUT, what="description of an experiment")["identity"]
        if differences := differences_between(before, plan.identity()):
            more = len(differences) - _SHOWN_DIFFERENCES
            listed = "; ".join(differences[:_SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
            raise PlmError(f"'{folder}' has other settings: {listed}", remedy="choose another --out")
        return
    write_json(folder / ABOUT, _about(plan, "running", {}))


def refuse_other_folder(out: Path) -> None:
    """Refuse a folder that holds anything but experiments."""
    if out.exists() and not out.is_dir():
        raise PlmError(f"'{out}' is a file", remedy="choose another --out")
    if out.is_dir() and any(out.iterdir()) and not ((out / "runs").is_dir() or list(out.glob(f"*/{ABOUT}"))):
        raise PlmError(f"'{out}' exists and does not hold experiments", remedy="choose another --out")


def write_outcome(plan: Plan, folder: Path, results: Results, findings: Findings | None) -> None:
    """Write everything an experiment found, at once or not at all."""
    with atomic_folder(folder, replace=True) as temporary:
        status = "incomplete" if results.failed or findings is None else "finished"
        about = _about(plan, status, results.failed)
        write_json(temporary / ABOUT, {**about, "notes": [] if findings is None else list(findings.notes)})
        if plan.jobs:
            _write_runs(temporary / "runs.csv", results, folder.parent)
        if findings is None:
            return
        notes = "".join(f"\n{note}\n" for note in findings.notes)
        heading = f"# {plan.experiment.name}: {plan.experiment.question}\n\n"
        texts = {
            "table.md": heading + "\n".join(table.markdown() for table in findings.tables) + notes,
            "table.csv": csv_of(findings.tables),
            "table.tex": "\n".join(table.latex() for table in findings.tables),
        }
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8")
        for figure in findings.figures:
            figure.draw(temporary, f"figure{figure.ending}")


def _about(plan: Plan, status: str, failed: Mapping[str, str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "question": plan.experiment.question,
        "paper": plan.experiment.paper,
        "status": status,
        "identity": plan.identity(),
        "seeds": 1 + max((job.seed for job in plan.jobs), default=0),
        "skipped_backbones": dict(plan.skipped),
        "failed": dict(failed),
    }


def _write_runs(path: Path, results: Results, out: Path) -> None:
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
        writer.writerow(["cohort", "task", "backbone", "row", "seed", *titles, "seconds", "peak_gib", "folder"])
        for result in results.finished:
            job, results_of_run = result.job, result.run.results
            values = [result.score(split, metric) for split, metric in scores]
            writer.writerow(
                [job.cohort, job.task, job.backbone, job.variant.name, job.seed]
                + ["" if value is None else value for value in values]
                + [round(results_of_run.seconds, 2), round(results_of_run.peak_gib, 3)]
                + [job.folder.relative_to(out).as_posix()]
            )


def _to_warm(jobs: Sequence[Job], *, always: bool, workers: int) -> list[Job]:
    """Return a job of each kind whose frozen layers several processes would otherwise compute at once.

    Where time and memory are measured, they are always computed beforehand, by a process that is not measured.
    """
    kinds: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        if job.has_backbone:
            settings = job.settings
            kind = (job.cohort_folder, job.task, settings.backbone, settings.max_tokens, settings.cache_format)
            kinds.setdefault(kind, []).append(job)
    return [same[0] for same in kinds.values() if always or (workers > 1 and len(same) > 1)]
