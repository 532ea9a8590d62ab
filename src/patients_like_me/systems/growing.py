"""A bank that grows: newly labelled records become references of a finished run, without training.

What was fitted stays: the own path, the relations and the gates. New references bring their outcomes, so predictions
follow what has become of recent patients. The new run is a folder of its own; the old one is not touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_folder, digests_below
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.card import model_card
from patients_like_me.runs.predictions import ids_of
from patients_like_me.runs.record import RECORD
from patients_like_me.runs.run import CHECKPOINT, Run, load_run
from patients_like_me.systems.keeping import load_fitted, save_fitted
from patients_like_me.systems.problem import only, problem_of
from patients_like_me.systems.registry import find_system
from patients_like_me.systems.train import write_scored_predictions
from patients_like_me.tasks.instances import Instances, Rows, build_instances


def new_references(added: Instances, known: Instances) -> tuple[Rows, list[str]]:
    """Return the rows that may join the bank, and in words what may not.

    Training instances are in it already. Validation and test patients stay out: the scores of the run are theirs, and
    the outcomes of some would help to predict the others.
    """
    ids, people = ids_of(added), ids_of(known)
    evaluated = people.filter(~pl.Series(known.splits == "train"))["subject_id"].unique()
    of_evaluated = ids["subject_id"].is_in(evaluated.implode()).to_numpy()
    there = ids["instance_id"].is_in(people["instance_id"].implode()).to_numpy() & ~of_evaluated
    counts = {
        "are in the bank already": int(there.sum()),
        "are left out because they are of validation or test patients": int(of_evaluated.sum()),
    }
    return np.flatnonzero(~(there | of_evaluated)), [
        f"{number:,} {words}" for words, number in counts.items() if number
    ]


def grow_bank(run: Run | Path, cohort_folder: Path, out: Path, report: Callable[[str], None] = lambda _: None) -> Run:
    """Add the labelled instances of a cohort to the bank of a run, and write the result as a run of its own.

    Its predictions and scores are those of the run's own validation and test patients with the larger bank.
    """
    run = run if isinstance(run, Run) else load_run(run)
    results = run.results
    system = find_system(run.identity.system)
    if system.grow is None:
        raise PlmError(
            f"the system '{system.name}' has no bank that grows without training", remedy="train the run again"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PlmError(f"'{out}' exists already", remedy="choose another --out")
    started = time.perf_counter()
    report("reading the run and the new records")
    fitted, instances = load_fitted(system, run), run.instances
    cohort = Cohort.load(cohort_folder)
    if any(cohort.hash[:12] in note for note in results.notes):
        raise PlmError("this cohort has been added to the bank of the run before", remedy="give newer records")
    added = build_instances(cohort, instances.task, run.task_settings, label_vocabulary=run.label_vocabulary)
    usable, left_out = new_references(added, instances)
    if not len(usable):
        raise PlmError(
            "nothing of this cohort can be added: the run knows all its instances", remedy="give newer records"
        )
    added = only(added, usable)
    report(f"adding {len(added):,} labelled instances to the bank")
    grown = system.grow(fitted, added)
    problem = problem_of(instances)
    report("predicting validation and test with the larger bank")
    logits = system.predict(grown, only(problem.instances, problem.evaluated))
    # Whole or not at all: a half-written run would be in the way of the next attempt.
    with atomic_folder(out, replace=out.exists()) as folder:
        scores = write_scored_predictions(
            folder, instances, problem, logits, calibration=run.calibration_for(newcomers=True)
        )
        save_fitted(system, grown, folder)
        note = f"the bank has grown by {len(added):,} instances of the cohort {cohort.hash[:12]}, without training"
        note += "".join(f"; {words}" for words in left_out)
        after = results.model_copy(
            update={
                "scores": scores,
                "notes": (*results.notes, note),
                "seconds": results.seconds + time.perf_counter() - started,
            }
        )
        title = f"{run.record.system.title}, bank + {len(added):,}"
        described = run.record.system.model_copy(update={"title": title})
        record = run.record.model_copy(update={"system": described})
        (folder / "README.md").write_text(model_card(record.finished(after), instances), encoding="utf-8")
        record = record.finished(after, digests_below(folder, without=(RECORD, CHECKPOINT, "README.md")))
        record.write(folder)
    return Run(out, record, run.moved_cohort)
