"""Commands of the rooms ``training`` and ``systems``: ``plm train``, ``plm predict``, ``plm plan``, ``plm systems``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patients_like_me.cli.graph import graph_settings_from
from patients_like_me.cli.tasks import CohortFolder, Preset, TaskName
from patients_like_me.training.strategies import STRATEGIES

if TYPE_CHECKING:
    from pydantic import BaseModel

    from patients_like_me.runs.run import Run
    from patients_like_me.systems.contract import System
    from patients_like_me.tasks.task import TaskSettings

Strategy = Annotated[
    str | None,
    typer.Option(help=f"{', '.join(f'[bold]{name}[/]' for name in STRATEGIES)}; default: {next(iter(STRATEGIES))}."),
]
Backbone = Annotated[str | None, typer.Option(help="A preset name, folder or GGUF file; see plm backbones.")]
SystemName = Annotated[str, typer.Option("--system", help="What to train; [bold]plm systems[/] lists them.")]
SystemOfPreset = Annotated[
    str | None,
    typer.Option(
        "--system",
        help="What to train; [bold]plm systems[/] lists them. Default: that of the preset (references: references; "
        "others: patients_like_me).",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, as NAME=VALUE: graph.tau=5, epochs=3, task.clock=discharge; repeatable."),
]


def settings_from(
    task: str, preset: str, *, changes: list[str] | None = None, **options: Any
) -> tuple[BaseModel, TaskSettings]:
    """Return the settings of a system and of a task: the options and the words of a command over a preset."""
    from patients_like_me.settings import changes_from_words
    from patients_like_me.systems.choosing import chosen_settings

    wanted = changes_from_words(changes or [])
    of_task = wanted.pop("task", {})
    return chosen_settings(task, preset, changes=wanted, task_changes=of_task, **options)


def train(
    cohort: CohortFolder,
    task: TaskName,
    out: Annotated[Path, typer.Option("--out", help="The run folder; an unfinished run in it is continued.")],
    system: SystemOfPreset = None,
    strategy: Strategy = None,
    preset: Preset = "quick",
    backbone: Backbone = None,
    seed: Annotated[int, typer.Option(help="Decides everything random.", min=0)] = 0,
    changes: Changes = None,
    cache: Annotated[Path | None, typer.Option(help="Where hidden states are kept; default: PLM_CACHE.")] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Keep no hidden states; frozen layers run in every epoch.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads of the computation; default: all cores.", min=1)] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Compute the frozen layers beforehand: a number of processes, or dask://HOST:PORT."),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Recalibrate on validation: [bold]logistic[/], [bold]isotonic[/] or [bold]none[/]; default: that of "
            "the preset (logistic; paper: none)."
        ),
    ] = None,
) -> None:
    """Train a system and write a run folder: what was fitted, predictions, scores, and a model card.

    Stopped at any moment, the same command continues from the last checkpoint and ends with the same result. Other
    settings for the same folder are refused with the difference shown.

    Examples:
        plm train cohort --task readmission --strategy vem --preset quick --out runs/vem

        plm train cohort --task drug_recommendation --preset paper --backbone bioclinical-modernbert --out runs/paper

        plm train cohort --task readmission --preset references --out runs/references

        plm train cohort --task readmission --system logistic --out runs/logistic

        torchrun --nproc-per-node 2 -m patients_like_me train cohort --task readmission --out runs/two

    """
    from rich.console import Console

    from patients_like_me.cli.progress import TrainingDisplay
    from patients_like_me.evaluation.recalibration import calibrate_if_possible
    from patients_like_me.runs.calibration import wanted_method
    from patients_like_me.runs.run import default_cache
    from patients_like_me.settings import calibration_of_preset
    from patients_like_me.systems.choosing import chosen_system
    from patients_like_me.systems.registry import find_system
    from patients_like_me.systems.train import train as train_system
    from patients_like_me.systems.train import train_along
    from patients_like_me.training.launching import launched_ranks

    system = chosen_system(system, preset)
    try:
        with launched_ranks() as ranks:
            settings, task_settings = settings_from(
                task, preset, system=system, strategy=strategy, backbone=backbone, seed=seed, changes=changes
            )
            method = wanted_method(calibrate or calibration_of_preset(preset))
            keeps_states = find_system(system).has_setting("backbone") and not no_cache
            place = (cache or default_cache()) if keeps_states else None
            chosen: dict[str, Any] = {
                "system": system, "settings": settings, "task_settings": task_settings, "cache": place,
                "threads": threads, "ranks": ranks,
            }  # fmt: skip
            if not ranks.is_first:
                train_along(cohort, task, **chosen)
                return
            with TrainingDisplay(int(getattr(settings, "epochs", 1)), task) as display:
                if workers is not None:
                    _fill_cache(cohort, task, task_settings, settings, place, workers, display.report)
                run = train_system(cohort, task, out, watcher=display, report=display.report, **chosen)
    except KeyboardInterrupt:
        typer.echo("plm: stopped; the same command continues from the last checkpoint", err=True)
        raise typer.Exit(130) from None
    run, problem = calibrate_if_possible(run, method)
    _show_scores(Console(markup=False), run)
    if problem:
        typer.echo(f"Note: {problem}.")


def _fill_cache(
    cohort: Path,
    task: str,
    task_settings: TaskSettings,
    settings: BaseModel,
    cache: Path | None,
    workers: str,
    report: Any,
) -> None:
    """Let workers compute the frozen layers before a training."""
    from patients_like_me.errors import PlmError
    from patients_like_me.training.frozen_layers import fill_cache_in_workers
    from patients_like_me.training.settings import TrainingSettings
    from patients_like_me.workers import read_workers

    chosen = read_workers(workers)
    if cache is None or not isinstance(settings, TrainingSettings):
        raise PlmError(
            "--workers computes the frozen layers of patients_like_me, and this training keeps none",
            remedy="leave --workers out, or leave out --no-cache",
        )
    fill_cache_in_workers(
        cohort,
        task,
        task_settings,
        settings,
        cache,
        workers=chosen,
        progress=lambda done, of: report(f"frozen layers: range {done:,} of {of:,}"),
    )


def _show_scores(console: Any, run: Run) -> None:
    from rich.table import Table

    results = run.results
    columns = dict(results.scores)
    if results.scores_as_newcomers is not None:
        columns |= {f"{split} as new patients": values for split, values in results.scores_as_newcomers.items()}
    table = Table("metric", *columns, title=f"{run.name}: {_chosen(run)}")
    table.columns[0].no_wrap = True
    for name in dict.fromkeys(name for values in columns.values() for name in values):
        shown = [values.get(name) for values in columns.values()]
        table.add_row(name, *("not available" if value is None else f"{value:.4f}" for value in shown))
    console.print(table)
    for warning in results.warnings:
        console.print(f"Warning: {warning}.", style="yellow", markup=False)
    for note in results.notes:
        console.print(f"Note: {note}.", markup=False)
    if run.record.calibration is not None:
        console.print(f"Recalibrated: {run.record.calibration.in_words()}.", markup=False)
    console.print(f"{results.seconds:.0f} s, peak {results.peak_gib:.2f} GiB. Run: {run.folder}", markup=False)


def _chosen(run: Run) -> str:
    """Return what validation chose, in words."""
    results = run.results
    if results.best_epoch is not None:
        return f"best epoch {results.best_epoch}"
    return ", ".join(f"{name} {value}" for name, value in results.chosen.items()) or "nothing to choose"


def predict(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    cohort: CohortFolder,
    out: Annotated[Path, typer.Option("--out", help="The Parquet file to write.")],
    every_visit: Annotated[
        bool, typer.Option("--every-visit", help="Predict every visit, not each patient's last.")
    ] = False,
    references: Annotated[
        Path | None, typer.Option(help="Another Parquet file: the references of each last visit, with outcomes.")
    ] = None,
) -> None:
    """Predict new patients with a finished run of any system that can.

    A system with references links each patient to the run's bank of labelled training instances and counts the links.

    Example:
        plm predict runs/vem todays-cohort --out predictions.parquet --references references.parquet

    """
    import polars as pl
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.files import atomic_file, write_json
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.systems.predictor import Predictor

    with Console(stderr=True).status("loading the run") as status:
        predictor, newcomers = Predictor.load(run), Cohort.load(cohort)
        if references is not None:
            predictor.run.require_references()
        predictions = predictor.predict(newcomers, every_visit=every_visit, report=shown_in(status))
        labels = {"task": predictor.run.identity.task, "labels": list(predictor.output_labels)}
        # The table is put in place last: where it is, its labels are too.
        with atomic_file(out) as temporary:
            predictions.write_parquet(temporary)
            write_json(out.with_suffix(".labels.json"), labels)
        if references is not None:
            from patients_like_me.explanation.newcomers import reference_table, scene_of_newcomers

            status.update("listing the references")
            table = reference_table(scene_of_newcomers(predictor.run, newcomers, bank_only=True))
            with atomic_file(references) as temporary:
                table.write_parquet(temporary)
    if newcomers.hash == predictor.run.identity.cohort:
        # Whose outcome a model was fitted to, is predicted better than a new patient is.
        tested = predictor.run.predictions()["subject_id"].unique()
        fitted_to = predictions.filter(~pl.col("subject_id").is_in(tested.implode()))["subject_id"].n_unique()
        typer.echo(
            f"Note: this is the cohort that the run was trained on, and {fitted_to:,} of the predicted patients are "
            "training patients: their predictions say nothing about new ones.",
            err=True,
        )
    alone = ""
    if "references" in predictions.columns:
        alone = f" ({int((predictions['references'] == 0).sum()):,} without a comparable patient in the bank)"
    typer.echo(f"{predictions.height:,} predictions{alone}: {out}")
    typer.echo(f"What each probability is the probability of: {out.with_suffix('.labels.json')}")
    if references is not None:
        typer.echo(f"References: {references}")


def plan(
    cohort: Annotated[
        Path | None, typer.Argument(help="A cohort folder that plm prepare wrote; not needed with --patients.")
    ] = None,
    task: TaskName = "readmission",
    system: SystemOfPreset = None,
    strategy: Strategy = None,
    preset: Preset = "quick",
    backbone: Backbone = None,
    changes: Changes = None,
    patients: Annotated[
        int | None, typer.Option(help="On paper: what this many patients would take, part by part.", min=1)
    ] = None,
    instances_per_patient: Annotated[
        float, typer.Option(help="With --patients: predicted visits of one patient.", min=0.01)
    ] = 1.0,
    workers: Annotated[int, typer.Option(help="With --patients: workers of one core each.", min=1)] = 1,
    figure: Annotated[
        Path | None, typer.Option(help="With --patients: draw measured points and growth (.svg or .png).")
    ] = None,
) -> None:
    """Estimate time, memory and disk of a training before it starts, from a few measured batches.

    With --patients: a plan on paper for any number of patients, from rates measured on this machine in a minute, with
    the growth of every part.

    Examples:
        plm plan cohort --task readmission --preset paper --backbone minilm

        plm plan --patients 10000000 --workers 64 --figure growth.svg

    """
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.errors import PlmError
    from patients_like_me.systems.choosing import chosen_system
    from patients_like_me.systems.planning import plan_training

    if patients is not None:
        _plan_on_paper(round(patients * instances_per_patient), workers, preset, backbone, changes, figure)
        return
    if cohort is None:
        raise PlmError("no cohort was given", remedy="give a cohort folder, or --patients for a plan on paper")

    system = chosen_system(system, preset)
    settings, task_settings = settings_from(
        task, preset, system=system, strategy=strategy, backbone=backbone, changes=changes
    )
    with Console(stderr=True).status("measuring a few batches"):
        words = plan_training(cohort, task, system, settings, task_settings).words
    table = Table("what", "estimate", show_header=False)
    for name, value in words.items():
        table.add_row(name, value)
    Console(markup=False).print(table)


def _plan_on_paper(
    instances: int, workers: int, preset: str, backbone: str | None, changes: list[str] | None, figure: Path | None
) -> None:
    """Show what a number of instances would take, part by part."""
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.errors import PlmError
    from patients_like_me.model.backbones import locate
    from patients_like_me.report.scale_plan import plan_scale
    from patients_like_me.settings import changes_from_words
    from patients_like_me.training.settings import settings_of_preset

    wanted = changes_from_words(changes or [])
    of_preset = settings_of_preset(preset).backbone.name
    if not isinstance(of_backbone := wanted.get("backbone", {}), dict):
        raise PlmError("'backbone' holds several settings", remedy="name one of them, such as backbone.name=minilm")
    backbone = backbone or of_backbone.pop("name", None)
    if not wanted.get("backbone", True):
        del wanted["backbone"]
    if backbone is None and locate(of_preset) is None:
        missing = f"the backbone '{of_preset}' of the preset is not on this machine: name another"
        typer.echo(f"plm: {missing}; the language model is not measured", err=True)
    elif backbone is None:
        backbone = of_preset
    settings = graph_settings_from(preset, wanted)
    # The comparison of all pairs is measured as one graph: where references come from does not change its cost.
    settings = settings.model_copy(update={"references": "cohort"})
    with Console(stderr=True).status("measuring rates") as status:
        found = plan_scale(instances, workers, settings=settings, backbone=backbone, report=shown_in(status))
    head, *lines = found.table()
    table = Table(*head, title=f"{instances:,} instances on {workers} workers, on paper")
    for line in lines:
        table.add_row(*line)
    console = Console(markup=False)
    console.print(table)
    fastest = found.fastest_growing
    console.print(f"Grows fastest: {fastest.name} (N^{fastest.growth(instances):.2f}).")
    for note in found.notes:
        console.print(f"Note: {note}.")
    if figure is not None:
        from patients_like_me.report.scale_figure import draw_growth

        draw_growth(found, figure)
        console.print(f"Figure: {figure}")


def systems() -> None:
    """List the systems that can be trained: the tasks they serve, what they need, and whether they can run here.

    Example:
        plm systems

    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from patients_like_me.systems.registry import all_systems

    table = Table("system", "what it is", show_lines=True)
    table.columns[0].no_wrap = True
    hints = []
    for system in all_systems().values():
        missing = system.missing_knowledge()
        hints += [f"{name}: {how}" for name, how in missing.items()]
        abilities = ", ".join(_ABILITIES[name] for name, able in system.capabilities if able)
        lines = [
            system.description,
            f"tasks: {_tasks_of(system)}",
            f"can: {abilities or 'predict its cohort'}",
            f"needs: {', '.join(system.knowledge) or 'nothing'}",
            "runs here: yes" if not missing else f"runs here: no, {', '.join(missing)} missing",
        ]
        table.add_row(Text(system.name), Text("\n".join(lines)))
    console = Console()
    console.print(table)
    for hint in dict.fromkeys(hints):
        console.print(hint, markup=False)


def _tasks_of(system: System) -> str:
    """Say which tasks a system serves: by name where it chooses among them, else by the kind of label."""
    from patients_like_me.tasks.kinds import KINDS_OF_LABEL
    from patients_like_me.tasks.registry import all_tasks

    if system.tasks or system.suits is not None:
        return ", ".join(name for name, task in all_tasks().items() if system.serves(task))
    return "all" if system.kinds == KINDS_OF_LABEL else f"all {', '.join(system.kinds)} ones"


_ABILITIES = {
    "random": "several seeds",
    "epochs": "epochs and checkpoints",
    "references": "references",
    "newcomers": "new patients",
}
