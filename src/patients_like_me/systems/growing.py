"""A bank that grows: newly labelled records become references of a finished run, without training.

What was fitted stays: the own path, the relations and the gates. New references bring their outcomes, so predictions
follow what has become of recent patients. The new run is a folder of its own; the old one is not touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from patients_like_me.errors import PlmError
from patients_like_me.files import digests_below
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.card import model_card
from patients_like_me.runs.record import RECORD
from patients_like_me.runs.run import CHECKPOINT, Run, load_run, writing_run
from patients_like_me.systems.keeping import load_fitted, save_fitted
from patients_like_me.systems.problem import only, problem_of
from patients_like_me.systems.registry import find_system
from patients_like_me.systems.train import write_scored_predictions
from patients_like_me.tasks.instances import build_instances


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
    if out.exists() and any(out.iterdir()):
        raise PlmError(f"'{out}' exists already", remedy="choose another --out")
    started = time.perf_counter()
    report("reading the run and the new records")
    fitted, instances = load_fitted(system, run), run.instances
    cohort = Cohort.load(cohort_folder)
    added = build_instances(cohort, instances.task, run.task_settings, label_vocabulary=run.label_vocabulary)
    report(f"adding {len(added):,} labelled instances to the bank")
    grown = system.grow(fitted, added)
    problem = problem_of(instances)
    report("predicting validation and test with the larger bank")
    logits = system.predict(grown, only(problem.instances, problem.evaluated))
    with writing_run(out):
        scores = write_scored_predictions(
            out, instances, problem, logits, calibration=run.calibration_for(newcomers=True)
        )
        save_fitted(system, grown, out)
        note = f"the bank has grown by {len(added):,} instances of the cohort {cohort.hash[:12]}, without training"
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
        (out / "README.md").write_text(model_card(record.finished(after), instances), encoding="utf-8")
        record = record.finished(after, digests_below(out, without=(RECORD, CHECKPOINT, "README.md")))
        record.write(out)
    return Run(out, record, run.moved_cohort)
