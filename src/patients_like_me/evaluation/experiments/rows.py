"""The rows of an experiment: its own grid, other systems, and what cannot run on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import PAPER, Experiment, Variant
from patients_like_me.evaluation.experiments.request import OF_SYSTEMS, OF_TASKS, Request
from patients_like_me.model.backbones import KNOWN_BACKBONES, how_to_get, locate, missing_backbone
from patients_like_me.settings import merged
from patients_like_me.systems.contract import System
from patients_like_me.systems.registry import DEFAULT, all_systems, find_system
from patients_like_me.tasks.task import Task

#: The word for all of them: systems after ``--systems``, experiments after ``plm experiment``.
ALL: Final = "all"


@dataclass(frozen=True)
class TableRows:
    """The rows of an experiment, and the systems that cannot be rows, each with the reason."""

    variants: tuple[Variant, ...]
    unavailable: Mapping[str, str] = field(default_factory=dict)


def rows_of(experiment: Experiment, request: Request, tasks: Sequence[Task]) -> TableRows:
    """Return the rows: the experiment's, those of its quick form, or those of ``--values``; then the other systems."""
    if request.values and experiment.variants_of is None:
        raise PlmError(f"the experiment '{experiment.name}' has no values to choose", remedy="leave out --values")
    variants = experiment.quick_grid if request.quick and experiment.quick_grid else experiment.grid
    if request.values and experiment.variants_of is not None and experiment.grid:
        variants = tuple(row for value in request.values for row in experiment.variants_of(value))
    variants, unavailable = _with_their_tables(variants, request, tasks)
    if experiment.takes_systems:
        systems, without_row = _systems_of(experiment, request, tasks)
        unavailable |= without_row
        variants += tuple(Variant(title, system=name) for name, title in systems.items())
    if not request.rows or not experiment.grid:
        return TableRows(variants, unavailable)
    names = [variant.name for variant in variants]
    for name in request.rows:
        if name not in names:
            why = f" ({unavailable[name]})" if name in unavailable else ""
            raise PlmError(
                f"the experiment '{experiment.name}' has no row '{name}'{why}", remedy=f"choose from {', '.join(names)}"
            )
    return TableRows(
        tuple(variant for variant in variants if variant.name in request.rows),
        {name: why for name, why in unavailable.items() if name in request.rows},
    )


def _with_their_tables(
    variants: Sequence[Variant], request: Request, tasks: Sequence[Task]
) -> tuple[tuple[Variant, ...], dict[str, str]]:
    """Divide rows into those whose systems have their tables and those that lack some, with the reason."""
    usable, unavailable = [], {}
    for variant in variants:
        system = find_system(variant.system)
        served = [task for task in tasks if system.serves(task)] if system.knowledge else []
        settings = [_settings_of(system, request, task, dict(variant.changes)) for task in served]
        if why := _lacks(system, settings):
            unavailable[variant.name] = why
        else:
            usable.append(variant)
    return tuple(usable), unavailable


def _systems_of(
    experiment: Experiment, request: Request, tasks: Sequence[Task]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the titles of the systems that were asked for and can run, and those that cannot with the reason."""
    everything = ALL in request.systems
    asked = list(all_systems().values()) if everything else [find_system(name) for name in request.systems]
    backbones = backbones_of(experiment, request)
    # A title that names the language model names the one of the row; of several, which its own column names, none.
    read: dict[str, Any] = {"backbone": {"name": backbones[0] if len(backbones) == 1 else "backbone"}}
    usable: dict[str, str] = {}
    unavailable: dict[str, str] = {}
    for system in asked:
        if system.takes_unnamed_settings:
            # Its rows are the experiment's own.
            continue
        served = [task for task in tasks if system.serves(task)]
        if not served:
            unavailable[system.name] = f"it does not serve {' or '.join(task.name for task in tasks)}"
            continue
        own = read if system.has_setting("backbone") else {}
        settings = [_settings_of(system, request, task, own) for task in served]
        if why := _lacks(system, settings):
            unavailable[system.name] = why
            continue
        titles = list(dict.fromkeys(map(system.title_of, settings)))
        if len(titles) > 1:
            raise PlmError(
                f"the row of '{system.name}' would be {' and '.join(titles)}, by task",
                remedy="give the setting that makes the difference for all tasks",
            )
        usable[system.name] = titles[0]
    return usable, unavailable


def _settings_of(system: System, request: Request, task: Task, own: dict[str, Any]) -> Any:
    """Return the settings of a system for a task, with what the user changed: they decide its title and its tables."""
    changes = merged(changes_of_system(system, request.changes_of_task(task.name)), own)
    return system.settings_of(request.preset, **changes)


def _lacks(system: System, settings: Sequence[Any]) -> str:
    """Say which tables a system needs under any of these settings that are not installed; empty where it has all."""
    missing = {table: way for each in settings for table, way in system.missing_knowledge(each).items()}
    needed = "; ".join(f"{table}: {way}" for table, way in missing.items())
    return f"it needs tables that are not installed ({needed})" if missing else ""


def seeds_of(experiment: Experiment, request: Request, variant: Variant | None = None) -> int:
    """Return how many seeds a row has; without a row, how many the experiment has."""
    if variant is not None and not find_system(variant.system).capabilities.random:
        # Where nothing is random, one seed is enough.
        return 1
    if request.seeds is not None:
        return request.seeds
    usual = experiment.quick_seeds if request.quick else experiment.seeds
    return usual if variant is None or variant.seeds is None else min(variant.seeds, usual)


def backbones_of(experiment: Experiment, request: Request) -> tuple[str, ...]:
    """Return the backbones asked for: the user's, the paper's with its preset, or the experiment's or preset's own."""
    if request.backbones:
        return request.backbones
    changed = request.changes.get("backbone", {})
    if isinstance(changed, dict) and "name" in changed:
        return (str(changed["name"]),)
    if request.preset == PAPER:
        return experiment.paper_backbones
    preset: Any = find_system(DEFAULT).settings_of(request.preset)
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


def changes_of_system(system: System, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes for one system: ``NAME.SETTING`` is for one, ``systems.SETTING`` for all but our own."""
    own = dict(changes.get(system.name, {}))
    if system.takes_unnamed_settings:
        elsewhere = {OF_TASKS, OF_SYSTEMS, system.name, *named_systems(changes)}
        return merged({name: value for name, value in changes.items() if name not in elsewhere}, own)
    shared = {name: value for name, value in changes.get(OF_SYSTEMS, {}).items() if system.has_setting(name)}
    return merged(shared, own)


def named_systems(changes: Mapping[str, Any]) -> list[str]:
    """Return the systems, other than our own, that changes are given for by name."""
    ours = find_system(DEFAULT)
    unknown = [name for name in changes if name not in (OF_TASKS, OF_SYSTEMS, ours.name) and not ours.has_setting(name)]
    # Asking for all systems loads slow libraries.
    return [name for name in unknown if name in all_systems()] if unknown else []
