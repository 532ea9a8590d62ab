"""From an experiment and a user's request to runs: every combination of cohort, task, backbone, row, split and seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import Experiment, Variant, quick_settings
from patients_like_me.evaluation.experiments.request import OF_SYSTEMS, OF_TASKS, Request, departures_from_paper
from patients_like_me.evaluation.experiments.rows import (
    TableRows,
    backbones_of,
    changes_of_system,
    named_systems,
    rows_of,
    seeds_of,
    usable_backbones,
)
from patients_like_me.files import read_json
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.registry import all_readers
from patients_like_me.runs.record import identity_of
from patients_like_me.runs.run import Run, same_run
from patients_like_me.settings import checked, merged
from patients_like_me.systems.contract import System
from patients_like_me.systems.quick import quick_changes
from patients_like_me.systems.registry import DEFAULT, find_system
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task, settings_of_tasks
from patients_like_me.tasks.task import TaskSettings


@dataclass(frozen=True)
class CohortPlace:
    """A cohort folder, what tables call it, and the name of its folder of runs."""

    folder: Path
    title: str
    slug: str
    cohort: Cohort = field(repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class Job:
    """One run to train: enough for another process to train it.

    With ``taus`` it is trained so that tau can be chosen on its embeddings; the choice is written to ``choice_file``.
    """

    experiment: str
    cohort_folder: Path
    cohort: str
    task: str
    backbone: str
    variant: Variant
    seed: int
    settings: Any
    task_settings: TaskSettings
    folder: Path
    taus: tuple[int, ...] = ()

    @property
    def split_seed(self) -> int:
        """The seed that divides the patients into training, validation and test."""
        return self.task_settings.split_seed

    @property
    def has_epochs(self) -> bool:
        """Tell whether it is trained in epochs, whose cost can be measured."""
        return find_system(self.variant.system).capabilities.epochs

    @property
    def keeps_layers(self) -> bool:
        """Tell whether it has a language model whose frozen layers can be computed beforehand."""
        return find_system(self.variant.system).has_setting("cache_format")

    @property
    def title(self) -> str:
        """What a progress display calls it."""
        split = f"split {self.split_seed}" if self.split_seed else ""
        words = [self.cohort, self.task, self.backbone, self.variant.name, split, f"seed {self.seed}"]
        return ", ".join(word for word in words if word)

    @property
    def choice_file(self) -> Path:
        """The file of the tau that was chosen on this run's embeddings."""
        return self.folder.parent / f"{self.folder.name}-tau-{'-'.join(map(str, self.taus))}.json"

    @property
    def chosen_tau(self) -> int | None:
        """The tau that was chosen; None before the choice."""
        if not self.choice_file.is_file():
            return None
        return int(read_json(self.choice_file, what="choice of tau")["tau"])


@dataclass(frozen=True)
class Plan:
    """The runs of one experiment, and what it cannot do here."""

    experiment: Experiment
    request: Request
    cohorts: tuple[CohortPlace, ...]
    tasks: tuple[str, ...]
    task_settings: Mapping[str, TaskSettings]
    jobs: tuple[Job, ...]
    #: Backbones that are not on this machine, with the way to get them.
    skipped: Mapping[str, str] = field(default_factory=dict)
    #: Systems that were asked for and cannot be rows, with the reason.
    unavailable: Mapping[str, str] = field(default_factory=dict)
    #: Of several cohorts those that have no label for a task, in words.
    without_labels: tuple[str, ...] = ()
    #: Runs on whose embeddings tau is chosen: one for each cohort, task, backbone and split.
    tunings: tuple[Job, ...] = ()

    @property
    def folder(self) -> Path:
        """Where tables and figures are written."""
        return self.request.folder_of(self.experiment)

    @property
    def name(self) -> str:
        """The name of its folder and the first word of its tables' labels."""
        return self.folder.name

    @property
    def is_possible(self) -> bool:
        """Tell whether there is anything to do: an experiment without a grid needs no run."""
        return bool(self.jobs) or not self.experiment.grid

    @property
    def splits(self) -> tuple[int, ...]:
        """The seeds of the splits, in their order."""
        return tuple(dict.fromkeys(job.split_seed for job in self.jobs))

    @property
    def departures(self) -> list[str]:
        """Where it differs from the paper's experiment, in words."""
        backbones = list(dict.fromkeys(job.backbone for job in self.jobs if job.backbone))
        return departures_from_paper(self.experiment, self.request, seeds_of(self.experiment, self.request), backbones)

    @property
    def waiting_for_tau(self) -> tuple[Job, ...]:
        """The tunings without a choice; until they have one, the jobs that depend on them have the preset's tau."""
        return tuple(job for job in self.tunings if job.chosen_tau is None)

    def run_of(self, job: Job) -> Run | None:
        """Return the run of a job where it was begun; a folder with other settings is refused."""
        cohort = next(place.cohort for place in self.cohorts if place.folder == job.cohort_folder)
        return same_run(job.folder, identity_of(cohort, job.task, job.task_settings, job.variant.system, job.settings))

    def identity(self) -> dict[str, Any]:
        """Return all that decides the experiment's result, apart from the number of seeds."""
        rows: dict[str, dict[str, Any]] = {}
        for job in self.jobs:
            name = " / ".join(word for word in (job.backbone, job.variant.name) if word)
            settings = job.settings.model_dump(mode="json", exclude={"seed"})
            if _takes_tau(job.settings, job.variant) and self.request.taus:
                settings["graph"]["tau"] = f"chosen on validation among {', '.join(map(str, self.request.taus))}"
            rows.setdefault(job.task, {}).setdefault(name, settings)
        return {
            "experiment": self.experiment.name,
            "cohorts": {place.slug: place.cohort.hash for place in self.cohorts},
            "task_settings": {
                task: settings.model_dump(mode="json", exclude={"split_seed"} if self.request.splits else None)
                for task, settings in self.task_settings.items()
            },
            "rows": rows,
        }


def open_cohorts(folders: Sequence[Path]) -> tuple[CohortPlace, ...]:
    """Load cohort folders and name them so that no two have the same name."""
    places: list[CohortPlace] = []
    for folder in folders:
        cohort = Cohort.load(folder)
        if any(place.cohort.hash == cohort.hash for place in places):
            raise PlmError(f"the cohort '{folder}' is given twice", remedy="give each cohort once")
        reader = all_readers().get(cohort.source)
        title = folder.resolve().name if reader is None or reader.any_hospital else reader.title
        title = f"{title} (synthetic)" if cohort.about.get("synthetic") else title
        if any(place.title == title for place in places):
            title = f"{title}, {folder.resolve().name}"
        places.append(CohortPlace(folder, title, f"{folder.resolve().name}-{cohort.hash[:6]}", cohort))
    return tuple(places)


def plan_experiment(experiment: Experiment, cohorts: Sequence[CohortPlace], request: Request) -> Plan:
    """Expand the grid of an experiment into runs."""
    planner = _Planner(experiment, tuple(cohorts), request)
    planner.refuse_unused_settings()
    jobs: list[Job] = []
    tunings: list[Job] = []
    for place, task, task_settings in planner.places():
        for backbone, variant in planner.combinations(place, task):
            tuning = planner.tuning(place, task, task_settings, backbone, variant)
            if tuning is not None and not any(each.folder == tuning.folder for each in tunings):
                tunings.append(tuning)
            for seed in range(seeds_of(experiment, request, variant)):
                tau = None if tuning is None else tuning.chosen_tau
                jobs.append(planner.job(place, task, task_settings, backbone, variant, seed, tau=tau))
    return Plan(
        experiment,
        request,
        planner.cohorts,
        planner.tasks,
        planner.task_settings,
        tuple(jobs),
        planner.backbones[1],
        planner.rows.unavailable,
        tuple(planner.without_labels.values()),
        tuple(tunings),
    )


@dataclass(frozen=True, eq=False)
class _Planner:
    experiment: Experiment
    cohorts: tuple[CohortPlace, ...]
    request: Request

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        tasks = self.request.tasks or self.experiment.tasks
        for place in self.cohorts:
            for task in tasks:
                find_task(task, place.cohort)
        self.request.refuse_unused_tasks(tasks)
        return tasks

    @cached_property
    def task_settings(self) -> dict[str, TaskSettings]:
        """The settings of each task; those under ``tasks.NAME.task`` are for one task alone."""
        general = self.request.changes.get(OF_TASKS, {})
        found = settings_of_tasks(self.tasks, self.request.preset, general)
        for task in self.tasks:
            own = self.request.changes_of_task(task).get(OF_TASKS, {})
            if own != general:
                found[task] = checked(type(found[task]), **merged(found[task].model_dump(), own))
        return found

    @cached_property
    def rows(self) -> TableRows:
        tasks = [find_task(task, place.cohort) for place in self.cohorts for task in self.tasks]
        return rows_of(self.experiment, self.request, list({task.name: task for task in tasks}.values()))

    def refuse_unused_settings(self) -> None:
        """Refuse settings of other systems that no row has."""
        systems = {variant.system for variant in self.rows.variants}
        if self.experiment.fits is not None:
            systems.add(self.experiment.fits)
        others = [each for each in map(find_system, systems) if not each.takes_unnamed_settings]
        for task in self.tasks:
            changes = self.request.changes_of_task(task)
            for name in named_systems(changes):
                if name not in systems:
                    raise PlmError(f"the system '{name}' is not a row", remedy=f"add it with --systems {name}")
            for name in changes.get(OF_SYSTEMS, {}):
                if not any(each.has_setting(name) for each in others):
                    raise PlmError(
                        f"no system among the rows has a setting '{name}'", remedy="add systems with --systems"
                    )

    @cached_property
    def backbones(self) -> tuple[tuple[str, ...], dict[str, str]]:
        if not any(find_system(variant.system).has_setting("backbone") for variant in self.rows.variants):
            return (), {}
        return usable_backbones(backbones_of(self.experiment, self.request))

    def places(self) -> Iterator[tuple[CohortPlace, str, TaskSettings]]:
        """Yield every cohort, task and split."""
        for place in self.cohorts:
            for task in self.tasks:
                if (place.title, task) in self.without_labels:
                    continue
                settings = self.task_settings[task]
                for split in self.request.splits or (settings.split_seed,):
                    yield place, task, settings.model_copy(update={"split_seed": split})

    @cached_property
    def without_labels(self) -> dict[tuple[str, str], str]:
        """The cohorts that have no label for a task, and both in words; a single cohort must have them all."""
        found: dict[tuple[str, str], str] = {}
        if len(self.cohorts) > 1 and self.experiment.grid:
            for place in self.cohorts:
                for task in self.tasks:
                    of_cohort = find_task(task, place.cohort)
                    try:
                        build_instances(place.cohort, of_cohort, self.task_settings[task])
                    except PlmError as error:
                        found[place.title, task] = f"{of_cohort.short_title or task}, {place.title}: {error.problem}"
        if found and len(found) == len(self.cohorts) * len(self.tasks):
            raise PlmError(
                f"no cohort has a label for {' or '.join(self.tasks)} ({next(iter(found.values()))})",
                remedy="choose another --task",
            )
        return found

    def combinations(self, place: CohortPlace, task: str) -> Iterator[tuple[str, Variant]]:
        """Yield every backbone and row that serves a task; rows without a backbone come last."""
        found = find_task(task, place.cohort)
        serving = [variant for variant in self.rows.variants if find_system(variant.system).serves(found)]
        with_backbone = [each for each in serving if find_system(each.system).has_setting("backbone")]
        yield from ((backbone, variant) for backbone in self.backbones[0] for variant in with_backbone)
        yield from (("", variant) for variant in serving if variant not in with_backbone)

    def tuning(
        self, place: CohortPlace, task: str, task_settings: TaskSettings, backbone: str, variant: Variant
    ) -> Job | None:
        """Return the job on whose embeddings the tau of a row is chosen; None where nothing is to be chosen."""
        system = find_system(variant.system)
        if not self.request.taus or system.without_graph is None:
            return None
        if not _takes_tau(self.settings(system, task, variant, backbone, 0), variant):
            return None
        plain = Variant("", system.without_graph, system.name)
        plain = replace(plain, name=system.title_of(self.settings(system, task, plain, backbone, 0)))
        return self.job(place, task, task_settings, backbone, plain, 0, taus=self.request.taus)

    def job(
        self,
        place: CohortPlace,
        task: str,
        task_settings: TaskSettings,
        backbone: str,
        variant: Variant,
        seed: int,
        *,
        tau: int | None = None,
        taus: tuple[int, ...] = (),
    ) -> Job:
        system = find_system(variant.system)
        settings = self.settings(system, task, variant, backbone, seed, tau)
        folder = self.request.out / "runs" / ("alone" if self.experiment.alone else "") / place.slug / task
        return Job(
            experiment=self.experiment.name,
            cohort_folder=place.folder,
            cohort=place.title,
            task=task,
            backbone=Path(backbone).name if system.has_setting("backbone") else "",
            variant=variant,
            seed=seed,
            settings=settings,
            task_settings=task_settings,
            folder=folder / _folder_name(system, settings, task_settings, seed),
            taus=taus,
        )

    def settings(
        self, system: System, task: str, variant: Variant, backbone: str, seed: int, tau: int | None = None
    ) -> Any:
        """Return the settings of a run; those that name no system are for the systems that take them."""
        wanted: dict[str, Any] = {}
        if system.takes_unnamed_settings:
            wanted = merged(
                dict(self.experiment.base), quick_settings(self.request.preset) if self.request.quick else {}
            )
        elif self.request.quick:
            tokens = quick_settings(self.request.preset)["max_tokens"]
            wanted = quick_changes(system, variant.preset or self.request.preset, max_tokens=tokens)
        if not system.takes_unnamed_settings and system.has_setting("graph"):
            # Another system with a patient graph links the same patients as ours.
            ours: Any = find_system(DEFAULT).settings_of(self.request.preset)
            wanted = merged(wanted, {"graph": {**ours.graph.model_dump(), "references": "bank"}})
        wanted = merged(wanted, changes_of_system(system, self.request.changes_of_task(task)))
        if tau is not None:
            wanted = merged(wanted, {"graph": {"tau": tau}})
        wanted = merged(wanted, {**variant.changes, "seed": seed})
        if system.has_setting("backbone"):
            wanted = merged(wanted, {"backbone": {"name": backbone}})
        settings: Any = system.settings_of(variant.preset or self.request.preset, **wanted)
        if self.experiment.all_epochs and system.has_setting("patience"):
            settings = settings.model_copy(update={"patience": settings.epochs})
        return settings


def _takes_tau(settings: Any, variant: Variant) -> bool:
    """Tell whether a row's tau is to be chosen: it uses the graph, and the row itself does not set tau."""
    return bool(getattr(settings, "uses_graph", False)) and "tau" not in dict(variant.changes).get("graph", {})


def _folder_name(system: System, settings: Any, task_settings: TaskSettings, seed: int) -> str:
    """Name a run by what it is, so that experiments in one folder share equal runs."""
    decides = {"task": task_settings.model_dump(mode="json"), **settings.model_dump(mode="json", exclude={"seed"})}
    words = [system.title_of(settings)]
    if system.has_setting("backbone"):
        words.append(Path(settings.backbone.name).name)
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]
    return "-".join([*words, digest, f"seed{seed}"])
