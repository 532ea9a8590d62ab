"""The command ``plm experiment``: the paper's tables and figures, and comparisons on own records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patients_like_me.cli.tasks import Preset
from patients_like_me.cli.training import Changes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from patients_like_me.evaluation.experiments.engine import Outcome
    from patients_like_me.evaluation.experiments.estimate import Estimate
    from patients_like_me.evaluation.experiments.jobs import Plan
    from patients_like_me.evaluation.experiments.request import Request
    from patients_like_me.evaluation.experiments.result_table import ResultTable

_ASK_FROM_SECONDS = 600.0


def experiment(
    name: Annotated[str, typer.Argument(help="An experiment, [bold]all[/], or [bold]list[/] to see what there is.")],
    cohorts: Annotated[list[Path] | None, typer.Argument(help="Cohort folders that plm prepare wrote.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder for runs, tables and figures.")] = None,
    folder_name: Annotated[
        str, typer.Option("--name", help="The folder in OUT; default: the name of the experiment.")
    ] = "",
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Other tasks than the usual ones; repeatable.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs per row; seeds 0, 1, 2 and so on.", min=1)] = None,
    splits: Annotated[
        str, typer.Option("--splits", help="Average over several splits: their number, or task.split_seed as 3,5,7.")
    ] = "",
    workers: Annotated[
        str | None,
        typer.Option(
            help="Runs at the same time (default: 1 on a graphics card, else up to 4), or a cluster: dask://HOST:PORT."
        ),
    ] = None,
    preset: Preset = "quick",
    backbone: Annotated[list[str] | None, typer.Option("--backbone", help="Other backbones; repeatable.")] = None,
    values: Annotated[
        list[str] | None, typer.Option("--values", help="tau, mc-samples: the values to try; repeatable.")
    ] = None,
    systems: Annotated[
        str, typer.Option("--systems", help="main, records: further systems as rows: all, or NAME,NAME.")
    ] = "",
    rows: Annotated[str, typer.Option("--rows", help="Keep these rows only: NAME,NAME.")] = "",
    against: Annotated[str, typer.Option("--against", help="main, records: differences from this row.")] = "",
    tune_tau: Annotated[
        str, typer.Option("--tune-tau", help="Choose tau on validation among these, per task and split: 2,4,8.")
    ] = "",
    sample: Annotated[
        str, typer.Option("--sample", help="edge-weights: draw training,test patients; the paper's: 6000,2000.")
    ] = "",
    changes: Changes = None,
    second_best: Annotated[bool, typer.Option("--second-best", help="Mark the second best of a column too.")] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="Also put the tables at their places in this Markdown page.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small form: fewer rows, seeds, epochs, tokens.")] = False,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Show what it would cost and stop.")] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Train nothing: write the tables again from OUT/NAME/numbers.json.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a long experiment.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where hidden states are kept; default: PLM_CACHE.")] = None,
) -> None:
    """Run an experiment: many trainings, then tables and a figure.

    The cost is estimated first. Every training is an ordinary run folder under OUT/runs; after a stop at any moment,
    the same command continues. Equal runs of several experiments in one OUT are trained once.

    Settings: --set NAME=VALUE for our own system, --set task.NAME=VALUE for the tasks that have it, --set
    tasks.TASK.NAME=VALUE for one task, --set SYSTEM.NAME=VALUE for another system, --set systems.NAME=VALUE for all
    others.

    Examples:
        plm experiment list

        plm experiment tau cohort --quick --out experiments

        plm experiment records cohort --systems all --splits 10 --tune-tau 2,4,8 --out results

        plm experiment all mimic3 mimic4 --preset paper --seeds 10 --sample 6000,2000 --out paper

    """
    from patients_like_me.evaluation.experiments.catalogue import add_experiment
    from patients_like_me.explanation.masking_summary import EXPERIMENT as MASKING

    add_experiment(MASKING)
    if name == "list":
        _list()
        return
    from rich.console import Console

    from patients_like_me.errors import PlmError
    from patients_like_me.evaluation.experiments.catalogue import find_experiments

    found = find_experiments(name)
    if folder_name and len(found) > 1:
        raise PlmError("several experiments cannot have one --name", remedy="leave out --name")
    if not cohorts and not report_only:
        raise PlmError(f"the experiment '{name}' needs a cohort", remedy=f"plm experiment {name} COHORT --out FOLDER")
    if out is None:
        raise PlmError("no folder is given for the experiment", remedy="name one with --out")
    console = Console(stderr=True, markup=False)
    if report_only:
        for each in found:
            _report_only(console, out / (folder_name or each.name), second_best=second_best, page=page)
        return
    from patients_like_me.evaluation.experiments.request import (
        Request,
        numbers_of,
        sample_of,
        split_seeds_of,
        words_of,
    )
    from patients_like_me.settings import changes_from_words

    request = Request(
        out=out,
        name=folder_name,
        tasks=tuple(task or ()),
        seeds=seeds,
        preset=preset,
        changes=changes_from_words(changes or []),
        backbones=tuple(backbone or ()),
        values=tuple(values or ()),
        systems=words_of(systems),
        rows=words_of(rows),
        splits=split_seeds_of(splits) if splits else (),
        taus=numbers_of(tune_tau, "--tune-tau") if tune_tau else (),
        against=against,
        sample=sample_of(sample) if sample else None,
        second_best=second_best,
        quick=quick,
    )
    _run(console, name, request, cohorts or [], workers=workers, plan_only=plan_only, yes=yes, cache=cache, page=page)


def _run(
    console: Console,
    name: str,
    request: Request,
    cohorts: Sequence[Path],
    *,
    workers: str | None,
    plan_only: bool,
    yes: bool,
    cache: Path | None,
    page: Path | None,
) -> None:
    """Plan, estimate, train and show."""
    from rich.console import Console

    from patients_like_me.cli.experiment_display import ExperimentDisplay
    from patients_like_me.cli.progress import shown_in
    from patients_like_me.errors import PlmError
    from patients_like_me.evaluation.experiments.catalogue import find_experiments
    from patients_like_me.evaluation.experiments.engine import refuse_other_folder, run_experiment
    from patients_like_me.evaluation.experiments.estimate import estimate_cost
    from patients_like_me.evaluation.experiments.jobs import open_cohorts, plan_experiment
    from patients_like_me.runs.run import default_cache
    from patients_like_me.workers import number_of_threads, read_workers, slots_of

    chosen = read_workers(workers) if workers else _usual_workers()
    found = find_experiments(name)
    refuse_other_folder(request.out)
    places = open_cohorts(cohorts)
    plans = [
        # The paper's other experiments are on one cohort: the last one that is named.
        plan_experiment(each, places if each.every_cohort or len(found) == 1 else places[-1:], request)
        for each in found
    ]
    if not any(plan.is_possible for plan in plans):
        ways = "; ".join(f"{missing}: {way}" for plan in plans for missing, way in plan.skipped.items())
        if not ways:
            lacking = "; ".join(f"{row}: {why}" for plan in plans for row, why in plan.unavailable.items())
            raise PlmError(f"no row of the experiment can be trained here ({lacking})", remedy="see: plm codes status")
        raise PlmError("no backbone of the experiment is on this machine", remedy=f"choose --backbone, or get {ways}")
    slots = slots_of(chosen)
    threads = max(1, number_of_threads() // slots)
    with console.status("estimating the cost") as status:
        cost = estimate_cost(plans, workers=slots, threads=threads, out=request.out, report=shown_in(status))
    _show_plan(Console(markup=False) if plan_only else console, plans, cost, slots)
    if plan_only:
        return
    if cost.seconds > _ASK_FROM_SECONDS and not yes and sys.stdin.isatty():
        typer.confirm("Start?", default=True, abort=True)
    try:
        with ExperimentDisplay(console, cost.left) as display:
            outcomes = [
                run_experiment(plan, workers=chosen, cache=cache or default_cache(), listener=display)
                for plan in plans
                if plan.is_possible
            ]
    except KeyboardInterrupt:
        typer.echo("plm: stopped; the same command continues from what was saved", err=True)
        raise typer.Exit(130) from None
    failed = _show_outcomes(console, outcomes, page)
    if left_out := [plan.experiment.name for plan in plans if not plan.is_possible]:
        console.print(f"not done, none of their backbones is on this machine: {', '.join(left_out)}", style="red")
    if failed or left_out:
        raise typer.Exit(1)


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.evaluation.experiments.catalogue import EXPERIMENTS

    table = Table("experiment", "what it answers", show_lines=True)
    for each in EXPERIMENTS.values():
        rows = ", ".join(variant.name for variant in each.grid) or "no training is needed"
        further = "; other systems with --systems" if each.takes_systems else ""
        lines = [f"{each.question[0].upper()}{each.question[1:]}", f"rows: {rows}{further}"]
        if each.grid:
            lines.append(f"tasks: {', '.join(each.tasks)}; seeds: {each.seeds} ({each.quick_seeds} with --quick)")
        if each.paper:
            lines.append(f"corresponds to: {each.paper}")
        table.add_row(each.name, "\n".join(lines))
    table.add_row("all", "All experiments of the paper in one folder; equal runs are trained once.")
    Console(markup=False).print(table)


def _show_plan(console: Console, plans: Sequence[Plan], cost: Estimate, workers: int) -> None:
    from rich.table import Table

    from patients_like_me.plain_text import duration_in_words

    table = Table("experiment", "runs", "cohorts", "tasks", "rows", title="What will be done")
    for plan in plans:
        rows = list(dict.fromkeys(f"{job.backbone} {job.variant.name}".strip() for job in plan.jobs))
        shown = ", ".join(rows) or ("no training" if plan.is_possible else "not possible here: no backbone")
        cohorts = ", ".join(place.title for place in plan.cohorts)
        table.add_row(plan.name, str(len(plan.jobs)), cohorts, ", ".join(plan.tasks), shown)
    console.print(table)
    console.print(f"Preset: {plans[0].request.preset}", markup=False)
    for departure in dict.fromkeys(each for plan in plans for each in plan.departures):
        console.print(f"Not as in the paper: {departure}", style="yellow", markup=False)
    for missing, way in {name: way for plan in plans for name, way in plan.skipped.items()}.items():
        console.print(f"Skipped, not on this machine: {missing}; {way}", style="yellow", markup=False)
    for system, why in {name: why for plan in plans for name, why in plan.unavailable.items()}.items():
        console.print(f"No row for {system}: {why}", style="yellow", markup=False)
    for words in dict.fromkeys(each for plan in plans for each in plan.without_labels):
        console.print(f"No run for {words}", style="yellow", markup=False)
    if not cost.runs:
        console.print("There is nothing to train.")
        return
    took = ""
    if cost.seconds:
        took = f"; with {workers} at a time at most about {duration_in_words(cost.seconds)} (from {cost.basis})"
    if cost.not_known:
        took += f"; {cost.not_known} without epochs, whose time is not known before"
    runs = "1 run" if cost.runs == 1 else f"{cost.runs} different runs"
    console.print(
        f"{runs}: {cost.finished} finished, {cost.begun} begun, {cost.left} left{took}.",
        markup=False,
    )


def _show_outcomes(console: Console, outcomes: Sequence[Outcome], page: Path | None) -> bool:
    """Print the tables and say where the files are; tell whether anything failed."""
    from patients_like_me.evaluation.experiments.engine import notes_of

    failed = False
    for outcome in outcomes:
        if outcome.findings is not None:
            _show_tables(console, outcome.findings.tables, notes_of(outcome.plan, outcome.findings), page)
        for title, problem in outcome.failed.items():
            failed = True
            console.print(f"failed: {title}: {problem}", style="red", markup=False)
        typer.echo(f"{outcome.plan.name}: {outcome.folder}")
    return failed


def _report_only(console: Console, folder: Path, *, second_best: bool, page: Path | None) -> None:
    from patients_like_me.evaluation.experiments.engine import rebuild

    tables, notes = rebuild(folder, second_best=second_best)
    _show_tables(console, tables, notes, page)
    typer.echo(f"{folder.name}: {folder}")


def _show_tables(console: Console, tables: Sequence[ResultTable], notes: Sequence[str], page: Path | None) -> None:
    for table in tables:
        typer.echo("\n" + table.markdown())
    for note in notes:
        typer.echo(note)
    if page is not None:
        from patients_like_me.evaluation.experiments.page import fill_page

        for label in fill_page(page, tables):
            console.print(f"'{page}' has no place for the table {label}", style="yellow", markup=False)


def _usual_workers() -> int:
    import torch

    from patients_like_me.workers import number_of_threads

    return 1 if torch.cuda.is_available() else min(4, number_of_threads())
