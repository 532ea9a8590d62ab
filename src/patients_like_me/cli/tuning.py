"""``plm tune``: settings of a system, tried on validation within a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from patients_like_me.cli.tasks import CohortFolder, Preset, TaskName
from patients_like_me.cli.training import Backbone, Changes, Strategy, SystemName, settings_from


def tune(
    cohort: CohortFolder,
    task: TaskName,
    out: Annotated[Path, typer.Option("--out", help="The folder in which the trials are kept.")],
    system: SystemName = "references",
    minutes: Annotated[float, typer.Option(help="The budget; a trial that has begun is finished.", min=0)] = 15.0,
    candidates: Annotated[int, typer.Option(help="How many choices are drawn at random.", min=1)] = 16,
    seed: Annotated[int, typer.Option(help="Decides which choices are drawn.", min=0)] = 0,
    strategy: Strategy = None,
    preset: Preset = "quick",
    backbone: Backbone = None,
    changes: Changes = None,
) -> None:
    """Find settings of a system on validation: tau, k, relations, whatever the system declares.

    All candidates are fitted on a quarter of the training patients, the better half on half of them, the better half of
    those on all. The settings as given are always among them. Stopped at any moment, the same command continues; with
    more minutes it goes on. Test labels are not looked at.

    Example:
        plm tune cohort --task drug_recommendation --minutes 15 --out tuning

    """
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.records.cohort import Cohort
    from patients_like_me.runs.record import identity_of
    from patients_like_me.runs.run import default_cache
    from patients_like_me.systems.problem import problem_of
    from patients_like_me.systems.registry import find_system, require_service
    from patients_like_me.systems.tuning import SHARES
    from patients_like_me.systems.tuning import tune as tune_system
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.registry import find_task

    settings, task_settings = settings_from(
        task, preset, system=system, strategy=strategy, backbone=backbone, changes=changes
    )
    chosen, loaded = find_system(system), Cohort.load(cohort)
    found_task = find_task(task, loaded)
    require_service(chosen, found_task, settings)
    instances = build_instances(loaded, found_task, task_settings)
    identity = identity_of(loaded, task, instances.settings, system, settings).model_dump(mode="json")
    with Console(stderr=True).status("tuning") as status:
        tuned = tune_system(
            chosen,
            problem_of(instances),
            settings,
            out,
            identity=identity,
            minutes=minutes,
            candidates=candidates,
            seed=seed,
            cache=default_cache(),
            report=status.update,
        )
    metric = found_task.metrics[0]
    table = Table("settings", *(f"{share:.0%}" for share in SHARES), title=f"validation {metric} by training patients")
    for trial in sorted(tuned.trials, key=lambda each: (-each.share, -(each.validation_score or 0.0))):
        if trial.share == max(each.share for each in tuned.trials if each.changes == trial.changes):
            scores = {each.share: each.validation_score for each in tuned.trials if each.changes == trial.changes}
            shown = ["" if share not in scores else _shown(scores[share]) for share in SHARES]
            table.add_row(", ".join(words_of(trial.changes)) or "as given", *shown)
    console = Console()
    console.print(table)
    if tuned.changes:
        words = " ".join(f"--set '{word}'" for word in words_of(tuned.changes))
        console.print(f"Best on validation: plm train {cohort} --task {task} --system {system} {words}", markup=False)
    else:
        console.print("Nothing that was tried is better on validation than the settings as given.")


def words_of(changes: dict[str, object]) -> list[str]:
    """Return changes as ``--set`` takes them.

    >>> words_of({"graph.tau": 4, "k": (30, 100)})
    ['graph.tau=4', 'k=[30, 100]']
    """
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in changes.items()]


def _shown(value: float | None) -> str:
    return "refused" if value is None else f"{value:.4f}"
