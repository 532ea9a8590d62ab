"""What an experiment will cost, before it starts: from finished runs of the same kind, else from measured batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from patients_like_me.evaluation.experiments.jobs import Job, Plan
from patients_like_me.runs.run import Run, load_run
from patients_like_me.systems.registry import find_system

#: Loading libraries, backbone and prompts, and writing the run.
_SECONDS_AROUND_A_RUN: Final = 15.0

#: Beside the seconds per epoch of each stage: those of a run outside its epochs, such as answers of language models.
_BESIDE_EPOCHS: Final = "beside epochs"

#: What decides the time of a training apart from its strategy.
KindOfTraining = tuple[str, str, str, str, int]


@dataclass(frozen=True)
class Estimate:
    """How many runs there are, how many are left, and how long they will take at most."""

    runs: int
    finished: int
    begun: int
    seconds: float
    basis: str
    #: How many of those left have no epochs, so that nothing tells their time before; they are not in ``seconds``.
    not_known: int = 0

    @property
    def left(self) -> int:
        """The runs that are still to be trained."""
        return self.runs - self.finished


def estimate_cost(
    plans: Sequence[Plan],
    *,
    workers: int,
    threads: int,
    out: Path,
    report: Callable[[str], None] = lambda _: None,
) -> Estimate:
    """Count the runs of some experiments, equal ones once, and estimate the time of those that are left."""
    states: dict[Path, tuple[Job, bool, bool, bool]] = {}
    for plan in plans:
        for job in (*plan.waiting_for_tau, *plan.jobs):
            run = plan.run_of(job)
            states[job.folder] = (job, run is not None, run is not None and run.is_finished, plan.experiment.alone)
    left = [(job, alone) for job, _, finished, alone in states.values() if not finished]
    per_epoch, basis = _seconds_per_epoch([job for job, _ in left], out, threads, report)
    seconds = 0.0
    for job, alone in left:
        if job.has_epochs:
            costs = per_epoch[kind_of_training(job)]
            own = _SECONDS_AROUND_A_RUN + costs.get(_BESIDE_EPOCHS, 0.0)
            own += sum(epochs * costs.get(stage, 0.0) for stage, epochs in _epochs_of_stages(job).items())
            seconds += own / (1 if alone else workers)
    return Estimate(
        runs=len(states),
        finished=sum(finished for _, _, finished, _ in states.values()),
        begun=sum(begun and not finished for _, begun, finished, _ in states.values()),
        seconds=seconds,
        basis=basis,
        not_known=sum(not job.has_epochs for job, _ in left),
    )


def kind_of_training(job: Job) -> KindOfTraining:
    """Return what two trainings must have in common to take about the same time per epoch."""
    return _kind(str(job.cohort_folder.resolve()), job.task, job.variant.system, job.settings.model_dump(mode="json"))


def _kind(cohort_folder: str, task: str, system: str, settings: Mapping[str, Any]) -> KindOfTraining:
    backbone = settings.get("backbone") or {}
    return cohort_folder, task, system, str(backbone.get("name", "")), int(settings.get("max_tokens") or 0)


def _seconds_per_epoch(
    jobs: Iterable[Job], out: Path, threads: int, report: Callable[[str], None]
) -> tuple[dict[KindOfTraining, dict[str, float]], str]:
    """Return seconds per epoch of every stage for each kind of training, and where the numbers come from."""
    wanted: dict[KindOfTraining, Job] = {}
    for job in jobs:
        if job.has_epochs:
            wanted.setdefault(kind_of_training(job), job)
    known = _measured_by_runs(out, wanted)
    found = {kind: _largest(known[kind]) for kind in wanted if kind in known}
    for kind, job in wanted.items():
        if kind not in found:
            report(f"measuring a few batches of {job.title}")
            # Only the first stage is measured: a later one needs what it ends with.
            found[kind] = {next(iter(_epochs_of_stages(job))): _measured_now(job, threads)}
    measured = {kind: job for kind, job in wanted.items() if kind not in known}
    if not wanted:
        return found, "nothing is left to train"
    basis = "a few measured batches" if measured else "finished runs of the same kind"
    if staged := sorted({job.variant.system for job in measured.values() if len(_epochs_of_stages(job)) > 1}):
        basis += f"; of {', '.join(staged)} the first stage alone"
    return found, basis


def _epochs_of_stages(job: Job) -> dict[str, int]:
    """Return how many epochs every stage of a training has at most."""
    return find_system(job.variant.system).epochs_of_stages(job.settings)


def _largest(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest seconds of each stage."""
    return {stage: max(each.get(stage, 0.0) for each in costs) for stage in {name for each in costs for name in each}}


def seconds_of_stages(run: Run) -> dict[str, float]:
    """Return the seconds per epoch of every stage of a finished run, and those beside its epochs.

    Stages whose names end with a number, as in rounds, are one. An epoch that does not say its seconds has its share of
    those of the run.
    """
    staged = find_system(run.identity.system).stages is not None
    of_stage: dict[str, list[float]] = {}
    records = run.epoch_records()
    for record in records:
        name = re.sub(r"-\d+$", "", str(record.get("stage", ""))) if staged else ""
        seconds = record.get("seconds")
        own = float(seconds) if isinstance(seconds, int | float) else run.results.seconds / len(records)
        of_stage.setdefault(name, []).append(own)
    found = {name: sum(each) / len(each) for name, each in of_stage.items()}
    beside = run.results.seconds - sum(map(sum, of_stage.values()))
    return {**found, _BESIDE_EPOCHS: max(0.0, beside)}


def _measured_by_runs(out: Path, wanted: Container[KindOfTraining]) -> dict[KindOfTraining, list[dict[str, float]]]:
    """Return the seconds per epoch of the finished runs of a folder that are of these kinds."""
    found: dict[KindOfTraining, list[dict[str, float]]] = {}
    for path in sorted(out.glob("runs/**/run.json")):
        run = load_run(path.parent)
        if run.is_finished and run.results.epochs:
            identity = run.identity
            kind = _kind(run.record.cohort_folder, identity.task, identity.system, identity.settings)
            if kind in wanted:
                found.setdefault(kind, []).append(seconds_of_stages(run))
    return found


def _measured_now(job: Job, threads: int) -> float:
    import torch

    from patients_like_me.systems.planning import plan_training

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plan = plan_training(job.cohort_folder, job.task, job.variant.system, job.settings, job.task_settings)
    finally:
        torch.set_num_threads(before)
    return plan.seconds_per_epoch or 0.0
