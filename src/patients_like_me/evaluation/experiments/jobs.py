"""From an experiment and a user's request to runs: every combination of cohort, task, backbone, row and seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import Experiment, Variant, quick_settings
from patients_like_me.model.backbones import KNOWN_BACKBONES, how_to_get, locate, missing_backbone
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.record import identity_of
from patients_like_me.runs.run import Run, same_run
from patients_like_me.settings import merged
from patients_like_me.systems.contract import System
from patients_like_me.systems.registry import DEFAULT, all_systems, find_system
from patients_like_me.tasks.registry import find_task, settings_of_tasks
from patients_like_me.tasks.task import TaskSettings

_TITLES: Final = {"mimic3": "MIMIC-III", "mimic4": "MIMIC-IV", "eicu": "eICU"}


@dataclass(frozen=True)
class Wish:
    """What a user asks of an experiment; what is not given is taken from the experiment."""

    out: Path
    tasks: tuple[str, ...] = ()
    seeds: int | None = None
    preset: str = "quick"
    #: Changes of settings by name, as ``changes_from_words`` returns them; those under ``task`` are the task's.
    changes: Mapping[str, Any] = field(default_factory=dict)
    backbones: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    baselines: bool = False
    quick: bool = False


@dataclass(frozen=True)
class CohortPlace:
    """A cohort folder, what tables call it, and the name of its folder of runs."""

    folder: Path
    title: str
    slug: str
    cohort: Cohort = field(repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class Job:
    """One run to train: enough for another process to train it."""

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

    @property
    def has_epochs(self) -> bool:
        """Tell whether it is trained in epochs, whose cost can be measured."""
        return find_system(self.variant.system).capabilities.epochs

    @property
    def has_backbone(self) -> bool:
        """Tell whether it has a language model, whose frozen layers can be computed beforehand."""
        return find_system(self.variant.system).has_setting("backbone")

    @property
    def title(self) -> str:
        """What a progress display calls it."""
        words = [self.cohort, self.task, self.backbone, self.variant.name, f"seed {self.seed}"]
        return ", ".join(word for word in words if word)


@dataclass(frozen=True)
class Plan:
    """The runs of one experiment, and what it cannot do here."""

    experiment: Experiment
    cohorts: tuple[CohortPlace, ...]
    tasks: tuple[str, ...]
    task_settings: Mapping[str, TaskSettings]
    jobs: tuple[Job, ...]
    #: Backbones that are not on this machine, with the way to get them.
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_possible(self) -> bool:
        """Tell whether there is anything to do: an experiment without a grid needs no run."""
        return bool(self.jobs) or not self.experiment.grid

    def run_of(self, job: Job) -> Run | None:
        """Return the run of a job where it was begun; a folder with other settings is refused."""
        cohort = next(place.cohort for place in self.cohorts if place.folder == job.cohort_folder)
        return same_run(job.folder, identity_of(cohort, job.task, job.task_settings, job.variant.system, job.settings))

    def identity(self) -> dict[str, Any]:
        """Return all that decides the experiment's result, apart from the number of seeds."""
        rows: dict[str, Any] = {}
        for job in self.jobs:
            name = " / ".join(word for word in (job.backbone, job.variant.name) if word)
            rows.setdefault(name, job.settings.model_dump(mode="json", exclude={"seed"}))
        return {
            "experiment": self.experiment.name,
            "cohorts": {place.slug: place.cohort.hash for place in self.cohorts},
            "tasks": list(self.tasks),
            "task_settings": {task: settings.model_dump(mode="json") for task, settings in self.task_settings.items()},
            "rows": rows,
        }


def open_cohorts(folders: Sequence[Path]) -> tuple[CohortPlace, ...]:
    """Load cohort folders and name them so that no two have the same name."""
    places: list[CohortPlace] = []
    for folder in folders:
        cohort = Cohort.load(folder)
        if any(place.cohort.hash == cohort.hash for place in places):
            raise PlmError(f"the cohort '{folder}' is given twice", remedy="give each cohort once")
        title = _TITLES.get(cohort.source, folder.resolve().name)
        title = f"{title} (synthetic)" if cohort.about.get("synthetic") else title
        if any(place.title == title for place in places):
            title = f"{title}, {folder.resolve().name}"
        places.append(CohortPlace(folder, title, f"{folder.resolve().name}-{cohort.hash[:6]}", cohort))
    return tuple(places)


def plan_experiment(experiment: Experiment, cohorts: Sequence[CohortPlace], wish: Wish) -> Plan:
    """Expand the grid of an experiment into runs."""
    tasks = wish.tasks or experiment.tasks
    for place in cohorts:
        for task in tasks:
            find_task(task, place.cohort)
    changes = dict(wish.changes)
    of_task = changes.pop("task", {})
    task_settings = settings_of_tasks(tasks, wish.preset, of_task)
    usable, skipped = usable_backbones(backbones_of(experiment, wish)) if experiment.grid else ((), {})
    jobs = [
        _job(experiment, wish, changes, task_settings[task], place, task, backbone, variant, seed)
        for place in cohorts
        for task in tasks
        for backbone in usable
        for variant in rows_of(experiment, wish)
        if find_system(variant.system).has_setting("backbone") or backbone == usable[0]
        if find_system(variant.system).serves(find_task(task, place.cohort))
        # Where nothing is random, one seed is enough.
        for seed in range(seeds_of(experiment, wish) if find_system(variant.system).capabilities.random else 1)
    ]
    return Plan(experiment, tuple(cohorts), tasks, task_settings, tuple(jobs), skipped)


def rows_of(experiment: Experiment, wish: Wish) -> tuple[Variant, ...]:
    """Return the rows of the grid: the experiment's, those of its quick form, or those the user named."""
    if wish.values and experiment.variant_of is None:
        raise PlmError(f"the experiment '{experiment.name}' has no values to choose", remedy="leave out --values")
    rows = experiment.quick_grid if wish.quick and experiment.quick_grid else experiment.grid
    if wish.values and experiment.variant_of is not None:
        rows = tuple(experiment.variant_of(value) for value in wish.values)
    if wish.baselines and experiment.takes_baselines:
        rows += tuple(Variant(name, system=name) for name in all_systems() if name != DEFAULT)
    return rows


def seeds_of(experiment: Experiment, wish: Wish) -> int:
    """Return how many seeds every row has."""
    if wish.seeds is not None:
        return wish.seeds
    return experiment.quick_seeds if wish.quick else experiment.seeds


def backbones_of(experiment: Experiment, wish: Wish) -> tuple[str, ...]:
    """Return the backbones asked for: the user's, the paper's with its preset, or the experiment's or preset's own."""
    if wish.backbones:
        return wish.backbones
    changed = wish.changes.get("backbone", {})
    if isinstance(changed, dict) and "name" in changed:
        return (str(changed["name"]),)
    if wish.preset == "paper":
        return experiment.paper_backbones
    preset: Any = find_system(DEFAULT).settings_of(wish.preset)
    return experiment.backbones or (preset.backbone.name,)


def usable_backbones(names: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Divide backbones into those that are on this machine and those that are not, with the way to get them."""
    skipped = {}
    for name in dict.fromkeys(names):
        if locate(name) is None:
            skipped[name] = (
                how_to_get(KNOWN_BACKBONES[name]) if name in KNOWN_BACKBONES else str(missing_backbone(name))
            )
    return tuple(name for name in dict.fromkeys(names) if name not in skipped), skipped


def _job(
    experiment: Experiment,
    wish: Wish,
    changes: Mapping[str, Any],
    task_settings: TaskSettings,
    place: CohortPlace,
    task: str,
    backbone: str,
    variant: Variant,
    seed: int,
) -> Job:
    system = find_system(variant.system)
    settings = _settings_of(system, experiment, wish, changes, variant, backbone, seed)
    folder = wish.out / "runs" / ("alone" if experiment.alone else "") / place.slug / task
    return Job(
        experiment=experiment.name,
        cohort_folder=place.folder,
        cohort=place.title,
        task=task,
        backbone=Path(backbone).name if system.has_setting("backbone") else "",
        variant=variant,
        seed=seed,
        settings=settings,
        task_settings=task_settings,
        folder=folder / _folder_name(system, settings, task_settings, seed),
    )


def _settings_of(
    system: System,
    experiment: Experiment,
    wish: Wish,
    changes: Mapping[str, Any],
    variant: Variant,
    backbone: str,
    seed: int,
) -> Any:
    """Return the settings of a run; those of experiment and user are for the system that presets speak of."""
    wanted: dict[str, Any] = {}
    if system.preset_part is not None:
        wanted = merged(dict(experiment.base), quick_settings(wish.preset) if wish.quick else {})
        wanted = merged(wanted, dict(changes))
    wanted = merged(wanted, {**variant.changes, "seed": seed})
    if system.has_setting("backbone"):
        wanted = merged(wanted, {"backbone": {"name": backbone}})
    settings: Any = system.settings_of(wish.preset, **wanted)
    if experiment.all_epochs and system.has_setting("patience"):
        settings = settings.model_copy(update={"patience": settings.epochs})
    return settings


def _folder_name(system: System, settings: Any, task_settings: TaskSettings, seed: int) -> str:
    """Name a run by what it is, so that experiments in one folder share equal runs."""
    decides = {"task": task_settings.model_dump(mode="json"), **settings.model_dump(mode="json", exclude={"seed"})}
    words = [system.title_of(settings)]
    if system.has_setting("backbone"):
        words.append(Path(settings.backbone.name).name)
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]
    return "-".join([*words, digest, f"seed{seed}"])
