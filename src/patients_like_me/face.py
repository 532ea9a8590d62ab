"""The public face: prepare, train, evaluate, compare, explain; objects and paths are taken alike.

>>> import patients_like_me as plm
>>> plm.load_run("no-such-folder")
Traceback (most recent call last):
    ...
patients_like_me.errors.PlmError: 'no-such-folder' is not a run folder (no run.json in it); make one with: plm train
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort as Cohort
from patients_like_me.records.newcomers import Newcomers, cohort_of_bundle, cohort_of_newcomers, names_in_order
from patients_like_me.runs.run import Run, default_cache
from patients_like_me.runs.run import load_run as load_run_folder
from patients_like_me.shown import ComparedRuns, EvaluatedRun, ExplainedPatient, SelfExplained

if TYPE_CHECKING:
    from patients_like_me.evaluation.run_bank import RunBank
    from patients_like_me.explanation.scene import Scene
    from patients_like_me.systems.predictor import Predictor

#: A folder, as text or as a path.
Folder = Path | str
#: New patients: a cohort, its folder, a dict, a list of dicts, frames by the name of their table, or a FHIR Bundle.
NewPatients = Cohort | Folder | Newcomers


def prepare(
    source: str,
    folder: Folder | Sequence[Folder],
    *,
    out: Folder,
    settings: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Cohort:
    """Read a hospital's tables, write a cohort folder and return the cohort.

    ``source`` names the reader (``plm prepare --help`` lists them), ``folder`` is where the records are: a folder or
    several, or a file or a database's address where the reader takes one. ``settings`` choose the visits
    (``minimum_age``, ``negative_stays``, ``require``), ``reading`` are the reader's own. The same call again finds the
    folder and loads it.
    """
    from patients_like_me.records.assemble import CohortSettings
    from patients_like_me.records.prepare import prepare as prepare_cohort
    from patients_like_me.settings import checked

    chosen = checked(CohortSettings, **(settings or {}))
    return Cohort.load(
        prepare_cohort(source, folder, Path(out), settings=chosen, reading=reading, replace=replace).folder
    )


def train(
    cohort: Cohort | Folder,
    *,
    task: str,
    out: Folder,
    system: str | None = None,
    preset: str = "quick",
    strategy: str | None = None,
    backbone: str | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    task_settings: Mapping[str, Any] | None = None,
    threads: int | None = None,
    calibrate: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> TrainedRun:
    """Train a system on a cohort and return the run; a finished run with the same settings is opened as it is.

    ``system`` is what is trained; default: the system of the preset, ``references`` for ``references`` and
    ``patients_like_me`` for the others. ``settings`` and ``task_settings`` are changes to the preset, nested as in
    ``{"graph": {"tau": 5}}``. ``report`` is told in words how far the training is. ``calibrate`` (logistic, isotonic
    or none) says how the probabilities are recalibrated on validation; default: as the preset says. Stopped at any
    moment, the same call continues from the last checkpoint.
    """
    from patients_like_me.evaluation.recalibration import calibrate_if_possible
    from patients_like_me.runs.calibration import wanted_method
    from patients_like_me.settings import calibration_of_preset
    from patients_like_me.systems.choosing import chosen_settings, chosen_system
    from patients_like_me.systems.registry import find_system
    from patients_like_me.systems.train import train as train_system

    folder = cohort.folder if isinstance(cohort, Cohort) else Path(cohort)
    if folder is None:
        raise PlmError(
            "this cohort is in memory only, and a run must find its cohort again",
            remedy="prepare it into a folder with prepare(..., out=...)",
        )
    system = chosen_system(system, preset)
    chosen, of_task = chosen_settings(
        task,
        preset,
        system=system,
        strategy=strategy,
        backbone=backbone,
        seed=seed,
        changes=settings,
        task_changes=task_settings,
    )
    run = train_system(
        folder,
        task,
        Path(out),
        system=system,
        settings=chosen,
        task_settings=of_task,
        cache=default_cache() if find_system(system).has_setting("backbone") else None,
        threads=threads,
        report=report,
    )
    run, problem = calibrate_if_possible(run, wanted_method(calibrate or calibration_of_preset(preset)))
    if problem:
        report(problem)
    return TrainedRun(run.folder, run.record, opened=run.opened)


def load_run(run: Run | Folder, cohort: Cohort | Folder | None = None) -> TrainedRun:
    """Open a run folder; ``cohort`` is where the cohort of the run is now, if it has moved."""
    if isinstance(run, TrainedRun) and cohort is None:
        return run
    moved = cohort.folder if isinstance(cohort, Cohort) else cohort
    if moved is None and isinstance(run, Run):
        return TrainedRun(run.folder, run.record, run.moved_cohort, run.opened)
    found = load_run_folder(run.folder if isinstance(run, Run) else run, moved)
    return TrainedRun(found.folder, found.record, found.moved_cohort)


def evaluate(run: Run | Folder, **options: Any) -> EvaluatedRun:
    """Evaluate a finished run; see :meth:`TrainedRun.evaluate`."""
    return load_run(run).evaluate(**options)


def explain(run: Run | Folder, newcomer: NewPatients | None = None, **options: Any) -> ExplainedPatient | SelfExplained:
    """Explain one prediction of a finished run; see :meth:`TrainedRun.explain`."""
    return load_run(run).explain(newcomer, **options)


def compare(
    runs: Sequence[Run | Folder],
    *,
    split: str = "test",
    across_splits: bool = False,
    replicates: int = 1000,
    seed: int = 0,
) -> ComparedRuns:
    """Compare finished runs of one task on one cohort; differences are against the first, over the same resamples.

    Runs that differ only in their seed become one row. ``across_splits`` averages over runs on several splits.
    """
    from patients_like_me.evaluation.compare import compare as compare_runs

    if isinstance(runs, str | Path | Run):
        raise PlmError("a comparison takes several runs", remedy="give a list of runs")
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    return ComparedRuns(
        compare_runs(folders, split=_split(split), across_splits=across_splits, replicates=replicates, seed=seed)
    )


@dataclass(frozen=True, repr=False)
class TrainedRun(Run):
    """A run folder with everything that can be asked of it."""

    def __repr__(self) -> str:
        return f"<run '{self.folder}': {self.identity.task}, {self.name}, {self.record.status}>"

    @cached_property
    def _predictor(self) -> Predictor:
        from patients_like_me.systems.predictor import Predictor

        return Predictor.load(self)

    @cached_property
    def _scenes(self) -> dict[str, Scene]:
        return {}

    @property
    def bank(self) -> RunBank:
        """The references of the run: ``add``, ``drop``, ``history``, ``check`` and ``summary``; see docs/bank.md."""
        from patients_like_me.evaluation.run_bank import RunBank

        return RunBank(self, load_run)

    def evaluate(self, *, split: str = "test", replicates: int = 1000, seed: int = 0) -> EvaluatedRun:
        """Evaluate the predictions of a split: every measure with its interval over patients, calibration, strata."""
        from patients_like_me.evaluation.evaluate import evaluate as evaluate_run

        found = evaluate_run(self, split=_split(split), replicates=replicates, seed=seed)
        return EvaluatedRun(self, found)

    def predict(self, newcomers: NewPatients, *, every_visit: bool = False) -> pl.DataFrame:
        """Predict the last visit of each new patient, or every visit: one row each, a column per probability.

        A system with references adds ``references``, the number of training instances a prediction is linked to;
        :meth:`references` lists them.
        """
        found = self._predictor.predict(as_cohort(newcomers), every_visit=every_visit)
        if given := names_in_order(newcomers):
            order = pl.DataFrame({"subject_id": given}).with_row_index("place")
            found = found.join(order, on="subject_id", how="left").sort("place", maintain_order=True).drop("place")
        names = [f"probability of {label}" for label in self.output_labels]
        columns = [pl.col("probabilities").list.get(place).alias(name) for place, name in enumerate(names)]
        return found.with_columns(columns).drop("probabilities")

    def references(self, newcomers: NewPatients, *, most: int = 10) -> pl.DataFrame:
        """List the references of the last visit of each new patient, nearest first, with their outcomes.

        The ids are those of the bank: this table is for those who may see the cohort.
        """
        from patients_like_me.explanation.newcomers import reference_table, scene_of_newcomers

        return reference_table(scene_of_newcomers(self, as_cohort(newcomers), bank_only=True), most=most)

    def explain(
        self,
        newcomer: NewPatients | None = None,
        *,
        example: int | None = None,
        instance: str | None = None,
        split: str = "test",
        drug: str | None = None,
        threshold: float | None = None,
        drop: Sequence[str] = (),
        tau: int | None = None,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        show_ids: bool = False,
    ) -> ExplainedPatient | SelfExplained:
        """Explain one prediction: of a new patient, or of an instance of a split by its number or visit id.

        Of several new patients, ``example`` (from 1) chooses one. ``drop`` (references), ``tau``, ``add`` and
        ``remove`` (diagnoses) ask what would be predicted if these were different. A system without references that
        explains itself returns its own page.
        """
        from patients_like_me.explanation.explain import explain as explain_row
        from patients_like_me.explanation.newcomers import scene_of_newcomers
        from patients_like_me.explanation.scene import chosen_row, set_scene
        from patients_like_me.explanation.what_if import Change
        from patients_like_me.report.self_page import explains_itself, self_page_of

        names, added, removed = (_as_names(given) for given in (drop, add, remove))
        change = Change(tuple(name.upper() for name in names), tau, added, removed)
        if explains_itself(self):
            if newcomer is not None or change or show_ids or threshold is not None:
                raise PlmError(
                    f"the system '{self.identity.system}' explains the predictions of its cohort, without references",
                    remedy="give example or instance, split and drug alone",
                )
            return SelfExplained(self_page_of(self, split, instance=instance, example=example, drug=drug))
        if newcomer is not None:
            scene = scene_of_newcomers(self, as_cohort(newcomer))
            if example is None and instance is None and len(scene.own_rows) == 1:
                example = 1
            if example is not None and (given := names_in_order(newcomer)) and 1 <= example <= len(given):
                # Patients of a cohort are in the order of their ids: the one that was given at this place is meant.
                example = 1 + _patients_of(scene).index(given[example - 1])
        else:
            if split not in self._scenes:
                self._scenes[split] = set_scene(self, split)
            scene = self._scenes[split]
        row = chosen_row(scene, instance=instance, example=example)
        return ExplainedPatient(
            explain_row(scene, row, drug=drug, threshold=threshold, show_ids=show_ids, change=change or None)
        )


def _patients_of(scene: Scene) -> list[str]:
    """Return the patient of every evaluated instance of a scene."""
    from patients_like_me.runs.predictions import ids_of

    ids: list[str] = ids_of(scene.instances, scene.own_rows)["subject_id"].to_list()
    return ids


def _as_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single one may come alone."""
    return (given,) if isinstance(given, str) else tuple(given)


def as_cohort(newcomers: NewPatients) -> Cohort:
    """Return new patients as a cohort, whatever form they come in.

    >>> as_cohort({"visits": [{"diagnoses": ["I50.9"]}]}).visits.height
    1
    """
    if isinstance(newcomers, Cohort):
        return newcomers
    if isinstance(newcomers, str | Path):
        given = Path(newcomers)
        return cohort_of_bundle(given) if given.is_file() and given.suffix == ".json" else Cohort.load(given)
    if not isinstance(newcomers, Mapping | Sequence):
        raise PlmError(
            f"new patients cannot be of the type '{type(newcomers).__name__}'",
            remedy="give a cohort, its folder, a dict, a list of dicts, or frames by the name of their table",
        )
    return cohort_of_newcomers(cast("Newcomers", newcomers))


def _split(name: str) -> Any:
    from patients_like_me.tasks.task import SPLITS

    if name not in SPLITS:
        raise PlmError(f"there is no split '{name}'", remedy=f"choose one of {', '.join(SPLITS)}")
    return name
