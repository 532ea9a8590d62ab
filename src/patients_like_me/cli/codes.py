"""``plm codes``: see which code tables are there, and add the ones that cannot be shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

codes_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "See and add the [bold]code tables[/]: ICD to CCS and its levels, NDC to RxNorm to ATC-3, interactions and "
        "molecules of drugs.\n\n"
        "Most of them come with plm. Two do not: the map of ICD-9 procedures (HCUP, free) and RxNorm (NLM, "
        "free licence). [bold]plm codes status[/] says what is missing and where to get it. Added tables are kept "
        "in the folder PLM_CODES, or in your user data folder."
    ),
)


@codes_app.command("status")
def show_status() -> None:
    """Say what is installed, what each table is needed for, and where to get what is missing."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.codes.status import status
    from patients_like_me.codes.store import CodeStore

    store = CodeStore.default()
    rows = status(store)
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, title="Code tables", title_justify="left")
    for column in ("Table", "Entries", "From", "Needed for"):
        table.add_column(column, justify="right" if column == "Entries" else "left", overflow="fold")
    for row in rows:
        style = None if row.installed else "yellow"
        table.add_row(
            f"{row.title}\n[dim]{row.table}[/dim]",
            f"{row.entries:,}",
            row.source,
            row.needed_for,
            style=style,
        )
    console.print(table)
    missing = [row for row in rows if not row.installed]
    if missing:
        console.print("[bold]How to get what is missing[/bold]")
    ways: dict[str, list[str]] = {}
    for row in missing:
        ways.setdefault(row.how_to_get, []).append(row.title)
    for how, titles in ways.items():
        console.print(f"\n[yellow]{' and '.join(titles)}[/yellow]")
        console.print(how, markup=False)
    console.print(f"\nAdded tables are kept in {store.folder}", markup=False, soft_wrap=True)


@codes_app.command("add")
def add_table(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="RxNorm release (folder or zip), HCUP's ICD-9 procedure file (as downloaded or zipped), HCUP's "
            "multi-level files (ccs_multi_dx_2015.csv), SMILES per ATC-3 code (JSON, or CSV with atc3 and smiles), or "
            "a CSV, TSV or Parquet table that names its columns: ndc, rxcui, atc3, or icd9proc, ccs, or atc3_a, atc3_b "
            "(interacting drugs).",
        ),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop what was installed of this table instead of adding to it.")
    ] = False,
    table: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="TABLE",
            help="Say which table FILE is, where its columns leave that open: icd9cm_ccs, icd10cm_ccs, "
            "icd9proc_ccs, icd10pcs_ccs, ndc_rxcui, rxcui_atc3, ndc_atc3, atc3_interactions, atc3_covered, "
            "ccs_multi_dx, ccs_multi_pr or atc3_smiles.",
        ),
    ] = None,
) -> None:
    """Install a code table; what it is, is recognised from the file itself.

    A second file of the same table adds to the first. The file is read once and kept in a form of plm's
    own, so it may be moved or deleted afterwards.
    """
    from patients_like_me.codes.store import CodeStore

    store = CodeStore.default()
    report = store.add(file, replace=replace, table=table)
    for part in report.added:
        left_out = (
            f"; {part.rows_without_value:,} rows of the file had no usable value" if part.rows_without_value else ""
        )
        typer.echo(f"{part.table}: read {part.rows:,} entries, now {part.entries:,} are installed{left_out}")
    for note in report.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"kept in {store.folder}; 'plm codes status' shows all tables")
