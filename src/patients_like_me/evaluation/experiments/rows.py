"""The rows of an experiment: its own grid, other systems, and what cannot run on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import PAPER, Experiment, Variant
from patients_like_me.evaluation.experiments.request import Request
from patients_like_me.model.backbones import KNOWN_BACKBONES, how_to_get, locate, missing_backbone
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
    if request.values and experiment.variant_of is None:
        raise PlmError(f"the experiment '{experiment.name}' has no values to choose", remedy="leave out --values")
    variants = experiment.quick_grid if request.quick and experiment.quick_grid else experiment.grid
    if request.values and experiment.variant_of is not None and experiment.grid:
        variants = tuple(experiment.variant_of(value) for value in request.values)
    unavailable: dict[str, str] = {}
    if experiment.takes_systems:
        systems, unavailable = _systems_of(request, tasks)
        backbones = backbones_of(experiment, request)
        # A title that names the language model names the one of the row; of several, which its own column names, none.
        read = {"backbone": {"name": backbones[0] if len(backbones) == 1 else "backbone"}}
        variants += tuple(
            Variant(
                each.title_of(each.settings_of(request.preset, **(read if each.has_setting("backbone") else {}))),
                system=each.name,
            )
            for each in systems
        )
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


def _systems_of(request: Request, tasks: Sequence[Task]) -> tuple[list[System], dict[str, str]]:
    """Return the systems that were asked for and can run, and those that cannot with the reason."""
    everything = ALL in request.systems
    asked = list(all_systems().values()) if everything else [find_system(name) for name in request.systems]
    usable, unavailable = [], {}
    for system in asked:
        if system.takes_unnamed_settings:
            # Its rows are the experiment's own.
            continue
        if not any(system.serves(task) for task in tasks):
            unavailable[system.name] = f"it does not serve {' or '.join(task.name for task in tasks)}"
        elif missing := system.missing_knowledge():
            needed = "; ".join(f"{table}: {way}" for table, way in missing.items())
            unavailable[system.name] = f"it needs tables that are not installed ({needed})"
        else:
            usable.append(system)
    return usable, unavailable


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
