"""Commands about the bank of a run: ``plm bank add``, ``drop``, ``history`` and ``check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patients_like_me.cli.tasks import CohortFolder

if TYPE_CHECKING:
    from patients_like_me.systems.growing import BankChange

bank_app = typer.Typer(no_args_is_help=True, help="The bank of a run: the labelled patients that serve as references.")

RunFolder = Annotated[Path, typer.Argument(help="A finished run folder of a system with references.")]
TrainedOn = Annotated[
    Path | None, typer.Option("--trained-on", help="Where the cohort of the run is now, if it has moved.")
]


@bank_app.callback()
def _bank() -> None:
    """Hold the commands of the bank."""


@bank_app.command("add")
def add(
    run: RunFolder,
    cohort: CohortFolder,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a copy of the run with the larger bank; the run stays as it is.")
    ] = None,
    remark: Annotated[str, typer.Option("--remark", help="Words that the history keeps with this addition.")] = "",
    trained_on: TrainedOn = None,
) -> None:
    """Make newly labelled records references of a run, without training.

    The old bank stays in use until the new one is whole; who reads the run meanwhile keeps the old one.

    Example:
        plm bank add runs/references cohort-2024

    """
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.runs.run import load_run
    from patients_like_me.systems.growing import add_to_bank, grow_bank

    with Console(stderr=True).status("opening the run") as status:
        opened = load_run(run, trained_on)
        if out is None:
            change = add_to_bank(opened, cohort, remark=remark, report=shown_in(status))
        else:
            grown = grow_bank(opened, cohort, out, remark=remark, report=shown_in(status))
    if out is None:
        _say(change)
    else:
        typer.echo(f"{_capital(grown.results.notes[-1])}.")
        _say_scores(grown.results.scores)
        typer.echo(f"Run: {out}")


@bank_app.command("drop")
def drop(
    run: RunFolder,
    addition: Annotated[
        list[int] | None, typer.Option("--addition", help="The number of an addition; can be given several times.")
    ] = None,
    added_before: Annotated[
        str | None, typer.Option("--added-before", help="Everything that was added before this day (2026-03-01).")
    ] = None,
    added_since: Annotated[
        str | None, typer.Option("--added-since", help="Everything that was added on this day or later.")
    ] = None,
    erase: Annotated[
        bool, typer.Option("--erase", help="Remove the records of what is dropped from the run folder.")
    ] = False,
    trained_on: TrainedOn = None,
) -> None:
    """Take additions out of the bank of a run; predictions are then those of before.

    Example:
        plm bank drop runs/references --addition 1

    """
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.runs.run import load_run
    from patients_like_me.systems.growing import drop_from_bank

    with Console(stderr=True).status("opening the run") as status:
        change = drop_from_bank(
            load_run(run, trained_on),
            addition or (),
            added_before=added_before,
            added_since=added_since,
            erase_records=erase,
            report=shown_in(status),
        )
    _say(change)


@bank_app.command("history")
def history(run: RunFolder) -> None:
    """List every change of the bank of a run: when, what, from where, and how many references it had then.

    Example:
        plm bank history runs/references

    """
    from patients_like_me.plain_text import counted, printable
    from patients_like_me.runs.bank_versions import history as versions_of
    from patients_like_me.runs.run import load_run

    opened = load_run(run)
    trained = counted(opened.results.instances["train"], "reference")
    typer.echo(f"version 0, trained: {trained}")
    known = {each.number: each for version in versions_of(run) for each in version.additions}
    for version in versions_of(run):
        made = version.made.strftime("%Y-%m-%d %H:%M UTC")
        typer.echo(f"version {version.number}, {made}: {version.words}; {counted(version.references, 'reference')}")
        for number in version.changed if version.action == "add" else ():
            each = known[number]
            typer.echo(
                f"  addition {number}: {counted(each.instances, 'instance')} of {counted(each.patients, 'patient')}, "
                f"{printable(each.source)} cohort {each.cohort[:12]}"
            )
            for words in (*((each.remark,) if each.remark else ()), *each.notes):
                typer.echo(f"    {printable(words)}")


@bank_app.command("check")
def check(
    run: RunFolder,
    cohort: Annotated[
        Path | None, typer.Argument(help="A cohort to compare with the bank; default: the latest addition.")
    ] = None,
    trained_on: TrainedOn = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write everything as JSON.")] = None,
) -> None:
    """Say whether the bank of a run still serves: drift of patients against it, and calibration since the training.

    Example:
        plm bank check runs/references cohort-2024

    """
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.evaluation.bank_check import SHARES, check_bank
    from patients_like_me.files import write_json
    from patients_like_me.plain_text import FEW, printable
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.runs.run import load_run

    with Console(stderr=True).status("opening the run") as status:
        given = None if cohort is None else Cohort.load(cohort)
        found = check_bank(load_run(run, trained_on), given, shown_in(status))
    typer.echo(
        f"{_capital(found.about)}: {found.instances:,} instances of {found.patients:,} patients, against "
        f"{found.references:,} references."
    )
    for each in found.findings:
        share = each.name in SHARES
        now = f"of {FEW} patients" if each.hidden else _number(each.now, share=share)
        if each.interval is not None:
            now += f" ({_number(each.interval.low, share=share)} to {_number(each.interval.high, share=share)})"
        mark = "beyond the limit" if each.beyond else "within the limit"
        typer.echo(f"- {each.title}: {now}, usual {_number(each.usual, share=share)}; {mark}, which is: {each.limit}")
    for shift in found.codes[:10]:
        rates = " -> ".join("hidden" if rate is None else f"{rate:.1%}" for rate in (shift.in_bank, shift.now))
        typer.echo(f"  {shift.kind} {printable(shift.code)} {printable(shift.name)}: {rates}")
    typer.echo(f"{_capital(found.sentence)}.")
    if out is not None:
        write_json(out, found.as_json())
        typer.echo(f"Written: {out}")


def _say(change: BankChange) -> None:
    typer.echo(f"{_capital(change.words)}.")
    for note in change.notes:
        typer.echo(f"- {note}")
    _say_scores(change.version.scores)
    typer.echo(f"Version {change.version.number} of the bank is in use: {change.version.words}.")


def _say_scores(scores: dict[str, dict[str, float | None]]) -> None:
    for name, value in scores.get("test", {}).items():
        typer.echo(f"test {name}: {_number(value)}")


def _number(value: float | None, *, share: bool = False) -> str:
    if value is None:
        return "not available"
    return f"{100 * value:.1f} %" if share else f"{value:.3f}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
