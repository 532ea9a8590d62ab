"""The command ``plm``: one file per room, each importing its room only when a command of it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import patients_like_me
from patients_like_me.cli import (
    evaluation,
    experiment,
    explanation,
    faithfulness,
    graph,
    records,
    report,
    tasks,
    training,
)
from patients_like_me.cli.backbones import backbones_app
from patients_like_me.cli.codes import codes_app
from patients_like_me.cli.tasks import task_app
from patients_like_me.errors import PlmError

app = typer.Typer(
    name="plm",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help=(
        "Predict readmission, length of stay and drugs from hospital records, "
        "and show **which earlier patients** each prediction leans on.\n\n"
        "Everything runs on this machine; patient data never leaves it."
    ),
    epilog=(
        "A first walk: **plm synthesize --patients 500 --out hospital**, then "
        "**plm prepare mimic4 hospital --out cohort**, then **plm audit cohort --task readmission**. "
        "Every command explains itself with **--help**."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"plm {patients_like_me.__version__}")
        raise typer.Exit


@app.callback()
def _plm(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """Hold the options that stand before any command."""


app.command()(records.prepare)
app.command()(records.synthesize)
app.add_typer(codes_app, name="codes")
app.add_typer(backbones_app, name="backbones")
app.add_typer(task_app, name="task")
app.command()(tasks.audit)
app.command()(tasks.show)
app.command()(graph.graph)
app.command()(training.train)
app.command()(training.predict)
app.command()(training.plan)
app.command()(evaluation.evaluate)
app.command()(evaluation.compare)
app.command()(evaluation.export)
app.command()(experiment.experiment)
app.command()(explanation.explain)
app.command()(faithfulness.faithfulness)
app.command()(report.report)


def main() -> None:
    """Run ``plm``; what a user can mend ends in one sentence and exit code 2, never in a traceback."""
    try:
        app()
    except PlmError as error:
        typer.secho(f"plm: {error}", err=True, fg=typer.colors.RED)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.secho("plm: stopped; nothing half-written was left behind", err=True)
        sys.exit(130)
