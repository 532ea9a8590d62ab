"""Commands of the room ``records``: ``plm prepare`` and ``plm synthesize``."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from patients_like_me.records import readers

if TYPE_CHECKING:
    from patients_like_me.records.prepare import PreparedCohort

#: Readers are files named like them; loading them would take long.
_READERS: Final = sorted(module.name for module in iter_modules(readers.__path__))
#: How many more objects there have to be before Python looks for garbage.
_OBJECTS: Final = 200_000


def prepare(
    source: Annotated[
        str,
        typer.Argument(
            help=f"What the folder holds: {', '.join(f'[bold]{name}[/]' for name in _READERS)} ([bold]tables[/]: your "
            "own), or the reader of another installed package."
        ),
    ],
    folder: Annotated[
        list[str],
        typer.Argument(
            help="The download, at any usual level (hosp/, its parent, ...); several folders are joined. "
            "For omop also a DuckDB file or a postgresql:// address."
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The cohort folder to write.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="The visits of a preset: [bold]paper[/] keeps those with a diagnosis, a procedure and a medication."
        ),
    ] = None,
    negative_stays: Annotated[
        str | None,
        typer.Option(help="A discharge before the admission: [bold]refuse[/] (default) or [bold]drop[/] the visit."),
    ] = None,
    minimum_age: Annotated[int | None, typer.Option(help="Keep visits of patients at least this old.")] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep visits with a mapped code of this kind (diagnosis, procedure, medication); repeatable."
        ),
    ] = None,
    reading: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the reader, such as visit=unit; repeatable."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Prepare again what was prepared differently.")] = False,
    describe: Annotated[
        bool,
        typer.Option(
            "--describe", help="Only list the codes of a source and what its dialect makes of them (meds, fhir)."
        ),
    ] = False,
) -> None:
    """Read a hospital's tables and write a cohort: patients, visits in order, and their codes.

    Reads CSV, Parquet or NDJSON, plain or gzipped, in one file or many parts, with any header case. The cohort folder
    holds Parquet tables, the provenance of every file (size, SHA-256), the flow (what each filter left) and the
    coverage of every code map.

    Examples:
        plm prepare mimic4 ~/physionet/mimic-iv-3.1 --out cohort --negative-stays drop

        plm prepare mimic4 ~/physionet/mimic-iv-3.1 --preset paper --out paper-cohort --negative-stays drop

        plm prepare tables my-hospital --out cohort --minimum-age 18

        plm prepare meds my-dataset --describe

    """
    # Loading libraries and preparing make many objects that are kept: garbage is looked for among them less often.
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    # Nothing here multiplies matrices, and the threads for that would wait in a loop for work when numpy is loaded.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    # polars keeps memory that it has freed for some seconds, in which it is wanted again: new pages take their time.
    os.environ["_RJEM_MALLOC_CONF"] = os.environ.get("_RJEM_MALLOC_CONF") or "dirty_decay_ms:5000,muzzy_decay_ms:-1"
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.errors import PlmError
    from patients_like_me.records.assemble import CohortSettings
    from patients_like_me.records.prepare import prepare as prepare_cohort
    from patients_like_me.settings import changes_from_words, checked, preset_values

    console = Console(stderr=True)
    if describe:
        _describe(source, folder, reading or [])
        return
    if out is None:
        raise PlmError("no folder is given for the cohort", remedy="name one with --out FOLDER")
    of_preset = {} if preset is None else preset_values(preset).get("prepare", {})
    given = {
        "negative_stays": negative_stays,
        "minimum_age": minimum_age,
        "require": tuple(require) if require else None,
    }
    settings = checked(
        CohortSettings, **of_preset | {name: value for name, value in given.items() if value is not None}
    )
    with console.status("opening the tables") as status:
        prepared = prepare_cohort(
            source,
            folder,
            out,
            settings=settings,
            reading=changes_from_words(reading or []),
            replace=replace,
            report=shown_in(status),
        )
    _show(prepared)


def _describe(source: str, folders: list[str], reading: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.plain_text import printable
    from patients_like_me.records.prepare import describe
    from patients_like_me.settings import changes_from_words

    found = describe(source, folders, reading=changes_from_words(reading))
    table = Table(*found.columns, title=found.title)
    for row in found.rows:
        table.add_row(*(printable(cell) for cell in row))
    Console(markup=False).print(table)


def _show(prepared: PreparedCohort) -> None:
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.files import read_json
    from patients_like_me.plain_text import printable

    # Names of files, maps and folders are the user's: nothing in them is markup.
    console = Console(markup=False)
    flow = Table("station", "patients", "visits", "visits left out", title="Flow")
    for step in read_json(prepared.folder / "flow.json", what="flow"):
        flow.add_row(step["name"], *(f"{step[key]:,}" for key in ("patients", "visits", "visits_left_out")))
    coverage = Table("code map", "table", "rows", "mapped", "by way", "set apart", title="Coverage")
    maps: list[dict[str, Any]] = read_json(prepared.folder / "coverage.json", what="coverage")
    for row in maps:
        ways = ", ".join(f"{way} {count:,}" for way, count in row["mapped_by_way"].items())
        apart = ", ".join(f"{way.replace('_', ' ')} {count:,}" for way, count in row["set_apart"].items())
        share = "no rows" if row["share"] is None else _share(row["share"])
        coverage.add_row(printable(row["map"]), printable(row["table"]), f"{row['rows']:,}", share, ways, apart)
    console.print(flow)
    console.print(coverage)
    if any(row["codes_unmapped"] for row in maps):
        console.print(
            f"Unmapped codes with their rows: {prepared.folder / 'unmapped.parquet'}; more maps: plm codes status"
        )
    notes = [row["note"] for row in maps if row["note"]] + prepared.about["notes"]
    if prepared.about["unordered"]:
        notes.append(prepared.about["unordered"])
    for note in notes:
        console.print(f"Note: {printable(note)}.")
    for name, lost in prepared.about["rows_without_visit"].items():
        if lost:
            share = lost / prepared.about["rows_read"][name]
            line = f"{lost:,} rows of {printable(name)} ({share:.1%}) belong to no visit of the cohort."
            console.print(line, style="yellow")
    statistics = prepared.about["statistics"]
    kinds = ("visits", "conditions", "procedures", "drugs")
    averages = (f"{statistics[f'{kind}_per_patient']:.2f} {kind}" for kind in kinds)
    console.print(f"Per patient: {', '.join(averages)}.")
    console.print(f"{'Already prepared, reused' if prepared.reused else 'Cohort written'}: {prepared.folder}")


def _share(share: float) -> str:
    """Write a share of rows; what is not all of them is not rounded up to all.

    >>> _share(1.0), _share(0.9999), _share(0.848)
    ('100.0%', '99.9%', '84.8%')
    """
    return f"{share if share == 1 else min(share, 0.999):.1%}"


def synthesize(
    out: Annotated[Path, typer.Option("--out", help="The folder to write; it must not exist.")],
    patients: Annotated[int, typer.Option(help="How many patients.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="The same seed gives the same hospital.", min=0)] = 0,
    visits_per_patient: Annotated[float, typer.Option(help="Average number of visits.", min=1.0)] = 1.88,
    compress: Annotated[
        bool, typer.Option("--compress/--plain", help="Write .csv.gz or .csv (the form mimic4 only).")
    ] = True,
    form: Annotated[
        str,
        typer.Option(
            help="The form of the files: [bold]mimic4[/], [bold]eicu[/], [bold]omop[/], [bold]meds[/], [bold]fhir[/] "
            "or [bold]tables[/]."
        ),
    ] = "mimic4",
) -> None:
    """Write a synthetic hospital as MIMIC-IV-shaped files or in another form, for trying things out and for scale.

    The patients follow a documented generative model of clinical syndromes.
    [bold]No claim about accuracy rests on it.[/]

    Examples:
        plm synthesize --patients 1000 --seed 7 --out hospital

        plm synthesize --patients 1000 --form omop --out omop-hospital

    """
    from rich.console import Console

    from patients_like_me.records.forms.synthetic import write_synthetic_hospital_as

    with Console(stderr=True).status("writing the synthetic hospital") as status:
        summary = write_synthetic_hospital_as(
            form,
            out,
            patients=patients,
            seed=seed,
            compress=compress,
            visits_per_patient=visits_per_patient,
            progress=lambda name, done, total: status.update(f"{name}: {done:,} of {total:,} patients"),
        )
    typer.echo(summary.in_words())
    typer.echo(f"Synthetic hospital written: {out}. It is made up: no claim about accuracy rests on it.")
