"""From a cohort to a run folder, for every system: fit, predict, score, and write what belongs to a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, digests_below, remove_leftovers
from patients_like_me.model.ranks import Ranks
from patients_like_me.parts import failing_in_words, is_ours
from patients_like_me.plain_text import shown_count
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.calibration import Calibration
from patients_like_me.runs.card import model_card
from patients_like_me.runs.predictions import AS_NEWCOMERS, PREDICTIONS, prediction_frame, write_predictions
from patients_like_me.runs.record import RECORD, Identity, Results, RunRecord, SystemRecord, environment, identity_of
from patients_like_me.runs.run import CHECKPOINT, Run, finished_run, writing_run
from patients_like_me.runs.watching import Nobody, Watcher
from patients_like_me.settings import differences_between
from patients_like_me.systems.contract import Fitted, RunContext, System
from patients_like_me.systems.keeping import load_fitted, save_fitted
from patients_like_me.systems.problem import Logits, Problem, copied, copy_for_system, only, problem_of
from patients_like_me.systems.registry import DEFAULT, find_system, require_service
from patients_like_me.systems.returned_checks import checked_logits, refuse_unusable
from patients_like_me.systems.stages import STAGES, clear_stages
from patients_like_me.tasks.instances import Instances, Rows, build_instances
from patients_like_me.tasks.metrics import score
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import SPLITS, TaskSettings
from patients_like_me.workers import peak_gib

#: How many instances show whether what was kept predicts as it was scored, and how far probabilities may differ.
_COMPARED: Final = 16
_COMPARED_WITH_LANGUAGE_MODEL: Final = 2
_SAME: Final = 1e-5


def train(
    cohort_folder: Path,
    task_name: str,
    out: Path,
    *,
    system: str = DEFAULT,
    settings: BaseModel | Mapping[str, Any] | None = None,
    task_settings: TaskSettings | None = None,
    cache: Path | None = None,
    watcher: Watcher | None = None,
    report: Callable[[str], None] = lambda _: None,
    save_every: float = 600.0,
    threads: int | None = None,
    ranks: Ranks | None = None,
) -> Run:
    """Train a system and write its run folder, or continue a training that was stopped.

    ``settings`` are the system's settings, or changes to its defaults by name. A finished run with the same settings
    is returned as it is; other settings for the same folder are refused. The first of several ``ranks`` calls this, the
    others :func:`train_along`.
    """
    ranks = ranks or Ranks()
    question = _question_of(cohort_folder, task_name, system, settings, task_settings, ranks)
    chosen, wanted, instances, identity = question.system, question.settings, question.instances, question.identity
    if run := finished_run(out, identity):
        # A kill may have come after the record was whole.
        _clear_what_was_under_way(out)
        return run
    problem = problem_of(instances)
    # Loading scikit-learn takes seconds that are not part of a fit.
    import_module("sklearn.metrics")
    started = time.perf_counter()
    with writing_run(out), limited_threads(threads, chosen):
        # Another process may have finished it just before.
        if run := finished_run(out, identity):
            return run
        record = _begun(question, cohort_folder)
        begun = False

        def begin() -> None:
            nonlocal begun
            if not begun:
                record.write(out)
                remove_leftovers(out)
            begun = True

        context = RunContext(wanted, report, watcher or Nobody(), out, cache, save_every, begin, ranks)
        ranks.call(identity.model_dump(mode="json"))
        report(f"fitting '{system}' on {len(problem.train):,} training instances")
        with failing_in_words(chosen, chosen.fit, "fitting"):
            fitted = chosen.fit(copy_for_system(problem), context)
        refuse_unusable(chosen, fitted)
        logits, for_newcomers = _evaluated_logits(chosen, problem, fitted)
        begin()
        report("writing predictions and what was fitted")
        scores = write_scored_predictions(out, instances, problem, logits)
        as_newcomers = None
        if for_newcomers is not None:
            as_newcomers = write_scored_predictions(out, instances, problem, for_newcomers, name=AS_NEWCOMERS)
        save_fitted(chosen, fitted, out)
        if fitted.account.epochs:
            context.write_epochs(fitted.account.epochs)
        results = _results(instances, fitted, scores, as_newcomers, time.perf_counter() - started)
        kept = digests_below(out, without=(RECORD, CHECKPOINT, "README.md"))
        record = record.finished(results, {name: of for name, of in kept.items() if not name.startswith(f"{STAGES}/")})
        if not (is_ours(chosen.fit) and is_ours(chosen.predict)):
            scored = logits if for_newcomers is None else for_newcomers
            _refuse_other_predictions(chosen, Run(out, record), problem, scored)
        with atomic_file(out / "README.md") as card:
            card.write_text(model_card(record, instances), encoding="utf-8")
        record.write(out)
        _clear_what_was_under_way(out)
    return Run(out, record)


def train_along(
    cohort_folder: Path,
    task_name: str,
    *,
    system: str = DEFAULT,
    settings: BaseModel | Mapping[str, Any] | None = None,
    task_settings: TaskSettings | None = None,
    cache: Path | None = None,
    threads: int | None = None,
    ranks: Ranks,
) -> None:
    """Take part in the training of another process, which calls :func:`train`; write no run and say nothing."""
    question = _question_of(cohort_folder, task_name, system, settings, task_settings, ranks)
    called = ranks.called()
    if called is None:
        return
    own = question.identity.model_dump(mode="json")
    if called != own:
        differences = "; ".join(differences_between(called, own))
        raise PlmError(
            f"process {ranks.number} of the training was started for something else: {differences}",
            remedy="start all processes with the same command, cohort and version",
        )
    with limited_threads(threads, question.system):
        question.system.fit(problem_of(question.instances), RunContext(question.settings, cache=cache, ranks=ranks))


@dataclass(frozen=True)
class _Question:
    """What is to be trained."""

    system: System
    settings: BaseModel
    instances: Instances
    identity: Identity


def _question_of(
    cohort_folder: Path,
    task_name: str,
    system: str,
    settings: BaseModel | Mapping[str, Any] | None,
    task_settings: TaskSettings | None,
    ranks: Ranks,
) -> _Question:
    """Put together what is to be trained, and refuse what cannot be."""
    chosen = find_system(system)
    if ranks.size > 1 and not chosen.several_processes:
        raise PlmError(
            f"the system '{system}' is trained by one process, and {ranks.size} were started",
            remedy="start it without a launcher such as torchrun",
        )
    wanted = settings if isinstance(settings, BaseModel) else chosen.settings_of(None, **(settings or {}))
    if not isinstance(wanted, chosen.settings_class):
        raise PlmError(
            f"the system '{system}' takes {chosen.settings_class.__name__}, not {type(wanted).__name__}",
            remedy="give settings of the system, or name the other system",
        )
    cohort = Cohort.load(cohort_folder)
    task = find_task(task_name, cohort)
    require_service(chosen, task, wanted)
    instances = build_instances(cohort, task, task_settings)
    return _Question(chosen, wanted, instances, identity_of(cohort, task_name, instances.settings, system, wanted))


@contextmanager
def limited_threads(threads: int | None, system: System) -> Iterator[None]:
    """Limit the threads of a computation; systems with epochs compute with torch, which counts its own."""
    if threads is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    if system.capabilities.epochs:
        import torch

        torch.set_num_threads(threads)
    with threadpool_limits(threads):
        yield


def _clear_what_was_under_way(out: Path) -> None:
    """Remove what a finished run needs no longer; where it may only be read, this can stay."""
    with suppress(OSError):
        (out / CHECKPOINT).unlink(missing_ok=True)
    clear_stages(out)


def _begun(question: _Question, cohort_folder: Path) -> RunRecord:
    """Return the record of a run that has just begun."""
    system = question.system
    return RunRecord(
        identity=question.identity,
        system=SystemRecord(
            title=system.title_of(question.settings), description=system.description, capabilities=system.capabilities
        ),
        cohort_folder=str(cohort_folder.resolve()),
        environment=environment(),
    )


def _evaluated_logits(system: System, problem: Problem, fitted: Fitted) -> tuple[Logits, Logits | None]:
    """Return the logits of validation and test, and those as newcomers get them where these differ."""
    logits = fitted.evaluated
    if logits is None:
        with failing_in_words(system, system.predict, "predicting"):
            logits = system.predict(fitted, copied(only(problem.instances, problem.evaluated)))
    shape = len(problem.evaluated), problem.outputs
    return (
        checked_logits(system, logits, problem.kind, *shape),
        None if fitted.as_newcomers is None else checked_logits(system, fitted.as_newcomers, problem.kind, *shape),
    )


def _refuse_other_predictions(system: System, run: Run, problem: Problem, scored: Logits) -> None:
    """Refuse a system that, read from its run folder, does not predict what was scored: something was not kept.

    A few instances of validation are enough. The systems of this package are held to the same by their tests.
    """
    if not system.capabilities.newcomers:
        return
    rows = problem.validation[: _COMPARED_WITH_LANGUAGE_MODEL if system.llm_calls is not None else _COMPARED]
    instances = copied(only(problem.instances, rows))
    fitted = load_fitted(system, run)
    with failing_in_words(system, system.predict, "predicting from what it kept"):
        predicted = system.predict(fitted, instances)
    again = checked_logits(system, predicted, problem.kind, len(rows), problem.outputs)
    first, second = (_kept_probabilities(problem, logits) for logits in (scored[: len(rows)], again))
    if (difference := float(np.abs(first - second).max(initial=0.0))) > _SAME:
        raise PlmError(
            f"what the system '{system.name}' keeps does not predict as it was scored: probabilities differ by "
            f"{difference:.2g}",
            remedy="keep all that predict needs in 'arrays' and 'facts', not in 'state'; see docs/extend.md",
        )


def write_scored_predictions(
    out: Path,
    instances: Instances,
    problem: Problem,
    logits: Logits,
    *,
    name: str = PREDICTIONS,
    calibration: Calibration | None = None,
) -> dict[str, dict[str, float | None]]:
    """Write the predictions of validation and test; return their scores, of the numbers as they are written.

    With a calibration the scores are those of the recalibrated probabilities.
    """
    kept = _kept_probabilities(problem, logits)
    frames = [prediction_frame(instances, rows, own) for _, rows, own in _by_split(problem, kept)]
    write_predictions(out, frames, name)
    return _scores_of(instances, problem, kept if calibration is None else calibration.apply(problem.kind, kept))


def _kept_probabilities(problem: Problem, logits: Logits) -> npt.NDArray[np.float32]:
    """Return the probabilities as they are written."""
    return np.clip(problem.kind.probabilities(logits), 0.0, 1.0).astype(np.float32)


def _by_split(problem: Problem, kept: npt.NDArray[Any]) -> list[tuple[str, Rows, npt.NDArray[Any]]]:
    """Cut what is in the order of ``problem.evaluated`` into the splits that have instances."""
    first = len(problem.validation)
    parts = [("validation", problem.validation, kept[:first]), ("test", problem.test, kept[first:])]
    return [part for part in parts if len(part[1])]


def _scores_of(instances: Instances, problem: Problem, kept: npt.NDArray[Any]) -> dict[str, dict[str, float | None]]:
    return {
        split: score(instances.task.metrics, instances.labels[rows], problem.kind.in_shape(own))
        for split, rows, own in _by_split(problem, kept)
    }


def _notes_on_labels(instances: Instances) -> list[str]:
    """Say how many labels no training patient has: they are no part of what is scored."""
    if not instances.labels_outside_vocabulary:
        return []
    return [f"{shown_count(instances.labels_outside_vocabulary)} {instances.task.kind.outside_words}"]


def _results(
    instances: Instances,
    fitted: Fitted,
    scores: dict[str, dict[str, float | None]],
    as_newcomers: dict[str, dict[str, float | None]] | None,
    seconds: float,
) -> Results:
    account = fitted.account
    memory = [float(epoch["peak_gib"]) for epoch in account.epochs if "peak_gib" in epoch]
    return Results(
        scores=scores,
        scores_as_newcomers=as_newcomers,
        seconds=seconds if account.seconds is None else account.seconds,
        peak_gib=max(memory) if memory else peak_gib(),
        label_vocabulary=instances.label_vocabulary,
        task=instances.task.as_json(),
        instances={split: len(instances.rows_of(split)) for split in SPLITS},
        notes=(*map(str, account.notes), *_notes_on_labels(instances)),
        warnings=tuple(account.warnings),
        chosen=account.chosen,
        tried=tuple(account.tried),
        epochs=len(account.epochs) or None,
        best_epoch=account.best_epoch,
        prompts=account.prompts,
        graph=account.graph,
        trained_weights=account.trained_weights,
    )
