"""The command ``plm experiment``: the paper's tables and figures, one command each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patients_like_me.cli.training import Changes, Preset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from patients_like_me.evaluation.experiments.conduct import Outcome
    from patients_like_me.evaluation.experiments.estimate import Estimate
    from patients_like_me.evaluation.experiments.jobs import Plan

_ASK_FROM_SECONDS = 600.0


def experiment(
    name: Annotated[str, typer.Argument(help="An experiment, [bold]all[/], or [bold]list[/] to see what there is.")],
    cohorts: Annotated[list[Path] | None, typer.Argument(help="Cohort folders that plm prepare wrote.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder for runs, tables and figures.")] = None,
    task: Annotated[list[str] | None, typer.Option("--task", help="Another task than the paper's; repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs per row; seeds 0, 1, 2 and so on.", min=1)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs at the same time; default: 1 on a graphics card, else up to 4.", min=1)
    ] = None,
    preset: Preset = "quick",
    backbone: Annotated[list[str] | None, typer.Option("--backbone", help="Other backbones; repeatable.")] = None,
    values: Annotated[
        list[str] | None, typer.Option("--values", help="tau, mc-samples: the values to try; repeatable.")
    ] = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="main: also the plain models.")] = False,
    changes: Changes = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small form: fewer rows, seeds, epochs, tokens.")] = False,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Show what it would cost and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a long experiment.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where hidden states are kept; default: PLM_CACHE.")] = None,
) -> None:
    """Run an experiment of the paper: many trainings, then one table and one figure.

    The cost is estimated first. Every training is an ordinary run folder under OUT/runs; stopped at any moment, the
    same command goes on. Equal runs of several experiments in one OUT are trained once.

    Examples:
        plm experiment list

        plm experiment tau cohort --quick --out experiments

        plm experiment all mimic3 mimic4 --preset paper --seeds 10 --out paper

    """
    if name == "list":
        _list()
        return
    from rich.console import Console

    from patients_like_me.errors import PlmError
    from patients_like_me.evaluation.experiments.catalogue import find_experiments

    found = find_experiments(name)
    if not cohorts:
        raise PlmError(f"the experiment '{name}' needs a cohort", remedy=f"plm experiment {name} COHORT --out FOLDER")
    if out is None:
        raise PlmError("no folder is given for the experiment", remedy="name one with --out")
    from patients_like_me.evaluation.experiments.conduct import refuse_other_folder
    from patients_like_me.evaluation.experiments.estimate import estimate_cost
    from patients_like_me.evaluation.experiments.jobs import Wish, open_cohorts, plan_experiment
    from patients_like_me.runs.run import default_cache
    from patients_like_me.settings import changes_from_words
    from patients_like_me.workers import number_of_threads

    console = Console(stderr=True)
    wish = Wish(
        out=out,
        tasks=tuple(task or ()),
        seeds=seeds,
        preset=preset,
        changes=changes_from_words(changes or []),
        backbones=tuple(backbone or ()),
        values=tuple(values or ()),
        baselines=baselines,
        quick=quick,
    )
    refuse_other_folder(out)
    places = open_cohorts(cohorts)
    plans = [
        # The paper's other experiments are on one cohort: the last one that is named.
        plan_experiment(each, places if each.every_cohort or len(found) == 1 else places[-1:], wish)
        for each in found
    ]
    if not any(plan.is_possible for plan in plans):
        ways = "; ".join(f"{missing}: {way}" for plan in plans for missing, way in plan.skipped.items())
        raise PlmError("no backbone of the experiment is on this machine", remedy=f"choose --backbone, or get {ways}")
    workers = workers or _usual_workers()
    threads = max(1, number_of_threads() // workers)
    with console.status("estimating the cost") as status:
        cost = estimate_cost(plans, workers=workers, threads=threads, out=out, report=status.update)
    _show_plan(Console() if plan_only else console, plans, cost, workers)
    if plan_only:
        return
    if cost.seconds > _ASK_FROM_SECONDS and not yes and sys.stdin.isatty():
        typer.confirm("Start?", default=True, abort=True)
    outcomes = _conduct(console, plans, out, workers, cache or default_cache(), cost)
    failed = _show_outcomes(console, outcomes)
    if left_out := [plan.experiment.name for plan in plans if not plan.is_possible]:
        console.print(f"not done, no backbone of theirs is on this machine: {', '.join(left_out)}", style="red")
    if failed or left_out:
        raise typer.Exit(1)


def _conduct(
    console: Console, plans: Sequence[Plan], out: Path, workers: int, cache: Path, cost: Estimate
) -> list[Outcome]:
    from patients_like_me.cli.progress import ExperimentDisplay
    from patients_like_me.evaluation.experiments.conduct import conduct

    try:
        with ExperimentDisplay(console, cost.left) as display:
            return [
                conduct(plan, out, workers=workers, cache=cache, onlooker=display) for plan in plans if plan.is_possible
            ]
    except KeyboardInterrupt:
        typer.echo("plm: stopped; the same command goes on from what was saved", err=True)
        raise typer.Exit(130) from None


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.evaluation.experiments.catalogue import EXPERIMENTS

    table = Table("experiment", "what it answers", show_lines=True)
    for each in EXPERIMENTS.values():
        rows = ", ".join(variant.name for variant in each.grid) or "no training is needed"
        lines = [
            f"{each.question[0].upper()}{each.question[1:]}",
            f"rows: {rows}",
            f"tasks: {', '.join(each.tasks)}; seeds: {each.seeds} ({each.quick_seeds} with --quick)",
            f"answers to: {each.paper}",
        ]
        table.add_row(each.name, "\n".join(lines if each.grid else [*lines[:2], lines[3]]))
    table.add_row("all", "All of them in one folder; equal runs are trained once.")
    Console().print(table)


def _show_plan(console: Console, plans: Sequence[Plan], cost: Estimate, workers: int) -> None:
    from rich.table import Table

    from patients_like_me.plain_text import duration_in_words

    table = Table("experiment", "runs", "cohorts", "tasks", "rows", title="What will be done")
    for plan in plans:
        rows = list(dict.fromkeys(f"{job.backbone} {job.variant.name}".strip() for job in plan.jobs))
        shown = ", ".join(rows) or ("no training" if plan.is_possible else "not possible here: no backbone")
        cohorts = ", ".join(place.title for place in plan.cohorts)
        table.add_row(plan.experiment.name, str(len(plan.jobs)), cohorts, ", ".join(plan.tasks), shown)
    console.print(table)
    for name, way in {name: way for plan in plans for name, way in plan.skipped.items()}.items():
        console.print(f"Skipped, not on this machine: {name}; {way}", style="yellow", markup=False)
    if not cost.runs:
        console.print("There is nothing to train.")
        return
    took = (
        f"; with {workers} at a time at most about {duration_in_words(cost.seconds)} (from {cost.basis})"
        if cost.left
        else ""
    )
    runs = "1 run" if cost.runs == 1 else f"{cost.runs} different runs"
    console.print(
        f"{runs}: {cost.finished} finished, {cost.begun} begun, {cost.left} left{took}.",
        markup=False,
    )


def _show_outcomes(console: Console, outcomes: Sequence[Outcome]) -> bool:
    """Print the tables and say where the files are; tell whether anything failed."""
    failed = False
    for outcome in outcomes:
        if outcome.findings is not None:
            for table in outcome.findings.tables:
                typer.echo("\n" + table.markdown())
            for note in outcome.findings.notes:
                typer.echo(note)
        for title, problem in outcome.failed.items():
            failed = True
            console.print(f"failed: {title}: {problem}", style="red", markup=False)
        typer.echo(f"{outcome.plan.experiment.name}: {outcome.folder}")
    return failed


def _usual_workers() -> int:
    import torch

    from patients_like_me.workers import number_of_threads

    return 1 if torch.cuda.is_available() else min(4, number_of_threads())
