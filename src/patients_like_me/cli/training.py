"""Commands of the room ``training``: ``plm train``, ``plm predict`` and ``plm plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patients_like_me.cli.tasks import CohortFolder, TaskName
from patients_like_me.errors import PlmError

if TYPE_CHECKING:
    from patients_like_me.tasks.task import TaskSettings
    from patients_like_me.training.run import Run
    from patients_like_me.training.settings import TrainingSettings

Preset = Annotated[str, typer.Option(help="**paper**, **clinical** or **quick** (for a CPU).")]
Strategy = Annotated[str, typer.Option(help="**vem**, **alternating**, **end_to_end**, **two_stage** or **lm_only**.")]
Backbone = Annotated[str | None, typer.Option(help="A preset name, folder or GGUF file; see plm backbones.")]
Model = Annotated[
    str,
    typer.Option(
        help="**patients_like_me**, or a plain baseline: **logistic**, **boosting**, **frequency**, **repeat** or "
        "**neighbors**."
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, as NAME=VALUE: graph.tau=5, epochs=3, task.clock=discharge; repeatable."),
]


def settings_from(
    task: str, preset: str, strategy: str, backbone: str | None, seed: int, changes: list[str] | None
) -> tuple[TrainingSettings, TaskSettings]:
    """Lay the options of a command over a preset."""
    from patients_like_me.settings import changes_from_words, merged
    from patients_like_me.tasks.registry import task_settings_of
    from patients_like_me.training.settings import settings_of_preset

    wanted = changes_from_words(changes or [])
    task_changes = wanted.pop("task", {})
    if backbone is not None:
        wanted = merged(wanted, {"backbone": {"name": backbone}})
    return (
        settings_of_preset(preset, **{"strategy": strategy, "seed": seed, **wanted}),
        task_settings_of(task, preset, **task_changes),
    )


def train(
    cohort: CohortFolder,
    task: TaskName,
    out: Annotated[Path, typer.Option("--out", help="The run folder; an unfinished one is taken up again.")],
    model: Model = "patients_like_me",
    strategy: Strategy = "vem",
    preset: Preset = "quick",
    backbone: Backbone = None,
    seed: Annotated[int, typer.Option(help="Decides everything random.", min=0)] = 0,
    changes: Changes = None,
    cache: Annotated[Path | None, typer.Option(help="Where hidden states are kept; default: PLM_CACHE.")] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Keep no hidden states; frozen layers run anew.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads of the computation; default: all cores.", min=1)] = None,
) -> None:
    """Train a model and write a run folder: weights, predictions, scores of every epoch, and a model card.

    Stopped at any moment, the same command goes on from the last checkpoint and ends with the same result. Other
    settings for the same folder are refused with the difference shown.

    Examples:
        plm train cohort --task readmission --strategy vem --preset quick --out runs/vem

        plm train cohort --task drug_recommendation --preset paper --backbone bioclinical-modernbert --out runs/paper

        plm train cohort --task readmission --model logistic --out runs/logistic

    """
    if model != "patients_like_me":
        if strategy != "vem" or backbone is not None:
            raise PlmError(
                f"the model '{model}' has no language model, so no strategy or backbone can be chosen for it",
                remedy="leave out --strategy and --backbone",
            )
        _train_plain(cohort, task, out, model, preset, seed, changes, threads)
        return
    import torch
    from rich.console import Console

    from patients_like_me.cli.progress import TrainingDisplay
    from patients_like_me.training.run import default_cache
    from patients_like_me.training.run import train as train_run

    if threads is not None:
        torch.set_num_threads(threads)
    settings, task_settings = settings_from(task, preset, strategy, backbone, seed, changes)
    try:
        with TrainingDisplay(settings, task) as display:
            run = train_run(
                cohort,
                task,
                out,
                settings=settings,
                task_settings=task_settings,
                cache=None if no_cache else cache or default_cache(),
                watcher=display,
                report=display.report,
            )
    except KeyboardInterrupt:
        typer.echo("plm: stopped; the same command goes on from the last checkpoint", err=True)
        raise typer.Exit(130) from None
    _show_scores(Console(), run)


def _train_plain(
    cohort: Path,
    task: str,
    out: Path,
    model: str,
    preset: str,
    seed: int,
    changes: list[str] | None,
    threads: int | None,
) -> None:
    """Train a plain baseline; of the preset it takes what the task sees and what the label is."""
    from rich.console import Console
    from threadpoolctl import threadpool_limits

    from patients_like_me.settings import changes_from_words
    from patients_like_me.systems.settings import plain_settings
    from patients_like_me.tasks.registry import task_settings_of

    wanted = changes_from_words(changes or [])
    task_settings = task_settings_of(task, preset, **wanted.pop("task", {}))
    plain_settings(model, **{"seed": seed, **wanted})
    with Console(stderr=True).status(f"training '{model}'") as status, threadpool_limits(threads):
        from patients_like_me.systems.train import train_baseline

        run = train_baseline(
            cohort,
            task,
            out,
            model=model,
            settings=wanted,
            task_settings=task_settings,
            seed=seed,
            report=status.update,
        )
    console = Console()
    _show_scores(console, run)
    for note in run.about["notes"]:
        console.print(f"Note: {note}.", markup=False)


def _show_scores(console: Any, run: Run) -> None:
    from rich.table import Table

    scores = run.about["scores"]
    table = Table("metric", *scores, title=f"{run.name}: {_chosen(run)}")
    names = dict.fromkeys(name for values in scores.values() for name in values)
    for name in names:
        shown = [scores[split].get(name) for split in scores]
        table.add_row(name, *("not available" if value is None else f"{value:.4f}" for value in shown))
    console.print(table)
    console.print(f"{run.about['seconds']:.0f} s, peak {run.about['peak_gib']:.2f} GiB. Run: {run.folder}")


def _chosen(run: Run) -> str:
    """Say what validation chose."""
    if "best_epoch" in run.about:
        return f"best epoch {run.about['best_epoch']}"
    return ", ".join(f"{name} {value}" for name, value in run.about["tuned"].items()) or "nothing to choose"


def predict(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    cohort: CohortFolder,
    out: Annotated[Path, typer.Option("--out", help="The Parquet file to write.")],
    every_visit: Annotated[
        bool, typer.Option("--every-visit", help="Predict every visit, not each patient's last.")
    ] = False,
) -> None:
    """Predict for new patients: each is linked to the run's bank of labelled training instances.

    Example:
        plm predict runs/vem todays-cohort --out predictions.parquet

    """
    from rich.console import Console

    from patients_like_me.files import atomic_file, write_json
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.training.predictor import PatientsLikeMe
    from patients_like_me.training.run import Run

    Run.load(run).require_own_model()
    with Console(stderr=True).status("loading the run") as status:
        model = PatientsLikeMe.from_pretrained(run)
        predictions = model.predict(Cohort.load(cohort), every_visit=every_visit, report=status.update)
        with atomic_file(out) as temporary:
            predictions.write_parquet(temporary)
        write_json(out.with_suffix(".labels.json"), {"task": model.task.name, "labels": list(model.output_labels)})
    alone = int((predictions["references"] == 0).sum())
    typer.echo(f"{predictions.height:,} predictions ({alone:,} without a comparable patient in the bank): {out}")
    typer.echo(f"What each probability stands for: {out.with_suffix('.labels.json')}")


def plan(
    cohort: CohortFolder,
    task: TaskName = "readmission",
    strategy: Strategy = "vem",
    preset: Preset = "quick",
    backbone: Backbone = None,
    changes: Changes = None,
) -> None:
    """Estimate time, memory and disk of a training before it starts, from a few measured batches.

    Example:
        plm plan cohort --task readmission --preset paper --backbone minilm

    """
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.training.plan import plan_training

    settings, task_settings = settings_from(task, preset, strategy, backbone, 0, changes)
    with Console(stderr=True).status("measuring a few batches"):
        rows = plan_training(cohort, task, settings, task_settings).words
    table = Table("what", "estimate", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)
