"""Commands about the bank of a run: ``plm bank add``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patients_like_me.cli.tasks import CohortFolder

bank_app = typer.Typer(no_args_is_help=True, help="The bank of a run: the labelled patients that serve as references.")


@bank_app.callback()
def _bank() -> None:
    """Hold the commands of the bank."""


@bank_app.command("add")
def add(
    run: Annotated[Path, typer.Argument(help="A finished run folder of the system references.")],
    cohort: CohortFolder,
    out: Annotated[Path, typer.Option("--out", help="The run folder to write; the old one is not touched.")],
) -> None:
    """Add newly labelled records to the bank of a run, without training.

    The new run predicts with the larger bank; its scores are those of the old run's validation and test patients.

    Example:
        plm bank add runs/references cohort-2024 --out runs/references-2024

    """
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.systems.growing import grow_bank

    with Console(stderr=True).status("opening the run") as status:
        grown = grow_bank(run, cohort, out, report=shown_in(status))
    typer.echo(f"{grown.results.notes[-1][0].upper()}{grown.results.notes[-1][1:]}.")
    for name, value in grown.results.scores.get("test", {}).items():
        typer.echo(f"test {name}: {'not available' if value is None else f'{value:.4f}'}")
    typer.echo(f"Run: {out}")
