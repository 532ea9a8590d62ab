"""A run of a plain model: the same folder as any run has, without weights of a language model and without a bank.

``run.json``, ``predictions.parquet`` and ``README.md`` are as :mod:`patients_like_me.training.run` says; ``tried`` and
``tuned`` in ``run.json`` are the choices made on validation. What is simple to keep of a fitted model is in
``parameters.safetensors``, and for a bag ``features.json`` names its columns; nothing is pickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from patients_like_me.files import atomic_file, only_writer, write_json
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.problem import Chances, Fitted, Problem, problem_of
from patients_like_me.systems.settings import (
    BoostingSettings,
    LogisticSettings,
    NeighborsSettings,
    PlainSettings,
    RepeatSettings,
    plain_settings,
)
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.metrics import score
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import SPLITS, TaskSettings
from patients_like_me.training.card import plain_card
from patients_like_me.training.preparation import refuse_few_patients
from patients_like_me.training.run import (
    Run,
    begun,
    disk_errors_explained,
    finished_run,
    prediction_frame,
    run_identity,
)
from patients_like_me.workers import peak_gib

PARAMETERS = "parameters.safetensors"
FEATURES = "features.json"

_DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    "logistic": (
        "logistic regression on a bag of the inputs (one per code, or multinomial)",
        f"coefficients in `{PARAMETERS}`, the names of their columns in `{FEATURES}`",
    ),
    "boosting": (
        "histogram gradient boosting on a bag of the inputs (one model per frequent code)",
        "its predictions only: the trees have no form here that could be kept without pickle",
    ),
    "frequency": ("the label rates of the training split, the same for everyone", f"the rates in `{PARAMETERS}`"),
    "repeat": (
        "the answer of the visit before, over the label rates of the training split",
        f"the rates in `{PARAMETERS}`",
    ),
    "neighbors": (
        "the vote of the training instances that share diagnoses, shrunk towards the label rates",
        "its predictions only: cohort and settings give the graph again",
    ),
}


def train_baseline(
    cohort_folder: Path,
    task_name: str,
    out: Path,
    *,
    model: str,
    settings: Mapping[str, Any] | None = None,
    task_settings: TaskSettings | None = None,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> Run:
    """Fit a plain model and write its run folder; a finished run with the same settings is returned as it is.

    ``settings`` are changes to the model's own settings, by name. A run that was stopped starts anew.
    """
    chosen = plain_settings(model, **{"seed": seed, **(settings or {})})
    cohort = Cohort.load(cohort_folder)
    instances = build_instances(cohort, find_task(task_name, cohort), task_settings)
    identity = run_identity(cohort, task_name, instances.settings, model, chosen.model_dump(mode="json"))
    if run := finished_run(out, identity):
        return run
    refuse_few_patients(instances)
    # Loading scikit-learn takes seconds that are no part of a fit.
    import_module("sklearn.metrics")
    started = time.perf_counter()
    problem = problem_of(instances)
    report(f"fitting '{model}' on {len(problem.train):,} training instances")
    with only_writer(out), disk_errors_explained(out):
        fitted = fit(model, problem, chosen, report)
        about = begun(identity, cohort_folder)
        # From here on the folder is known as a run, whatever stops the writing.
        write_json(out / "run.json", about)
        about |= {
            "status": "finished",
            "scores": _write_predictions(out, instances, problem, fitted.best.chances),
            "tuned": fitted.best.choice,
            "tried": fitted.tried,
            "seconds": time.perf_counter() - started,
            "peak_gib": peak_gib(),
            "label_vocabulary": list(instances.label_vocabulary),
            "task": instances.task.as_json(),
            "graph": None,
            "instances": {split: len(instances.rows_of(split)) for split in SPLITS},
            "notes": fitted.notes,
        }
        _write_parameters(out, fitted)
        description, kept = _DESCRIPTIONS[model]
        card = plain_card(about, instances, description=description, kept=kept)
        (out / "README.md").write_text(card, encoding="utf-8")
        write_json(out / "run.json", about)
    return Run(out, about)


def fit(
    model: str, problem: Problem, settings: PlainSettings, report: Callable[[str], None] = lambda _: None
) -> Fitted:
    """Fit a plain model by its name; scikit-learn and the graph's kernels are loaded only by those that need them."""
    if model == "logistic":
        from patients_like_me.systems.logistic import fit_logistic

        return fit_logistic(problem, cast(LogisticSettings, settings), report)
    if model == "boosting":
        from patients_like_me.systems.boosting import fit_boosting

        return fit_boosting(problem, cast(BoostingSettings, settings), report)
    if model == "neighbors":
        from patients_like_me.systems.neighbors import fit_neighbors

        return fit_neighbors(problem, cast(NeighborsSettings, settings))
    from patients_like_me.systems.rates import fit_frequency, fit_repeat

    return (
        fit_repeat(problem, cast(RepeatSettings, settings)) if model == "repeat" else fit_frequency(problem, settings)
    )


def _write_predictions(out: Path, instances: Instances, problem: Problem, chances: Chances) -> dict[str, Any]:
    """Write the predictions of validation and test; return their scores, of the numbers as they are written."""
    kept = np.clip(chances, 0.0, 1.0).astype(np.float32)
    scores, frames, done = {}, [], 0
    for split in ("validation", "test"):
        rows = instances.rows_of(split)
        if not len(rows):
            continue
        own = kept[done : done + len(rows)]
        done += len(rows)
        shaped = problem.kind.in_shape(own)
        scores[split] = score(instances.task.metrics, instances.labels[rows], shaped)
        frames.append(prediction_frame(instances, rows, own))
    with atomic_file(out / "predictions.parquet") as temporary:
        pl.concat(frames).write_parquet(temporary)
    return scores


def _write_parameters(out: Path, fitted: Fitted) -> None:
    from safetensors.numpy import save_file

    if fitted.best.parameters:
        with atomic_file(out / PARAMETERS) as temporary:
            save_file({name: np.ascontiguousarray(value) for name, value in fitted.best.parameters.items()}, temporary)
    if fitted.features:
        write_json(out / FEATURES, list(fitted.features))
