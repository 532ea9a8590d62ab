"""The command ``plm``: one file per room, each importing its room only when a command of it runs."""

from __future__ import annotations

import errno
import inspect
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import patients_like_me
from patients_like_me import presets
from patients_like_me.cli import (
    evaluation,
    experiment,
    explanation,
    faithfulness,
    graph,
    records,
    report,
    settings,
    tasks,
    training,
    tuning,
)
from patients_like_me.cli.backbones import backbones_app
from patients_like_me.cli.bank import bank_app
from patients_like_me.cli.codes import codes_app
from patients_like_me.cli.overview import Overview, with_options_of
from patients_like_me.cli.serve import serve_app
from patients_like_me.cli.tasks import task_app
from patients_like_me.errors import PlmError
from patients_like_me.parts import LeftOutWarning
from patients_like_me.plain_text import printable_lines
from patients_like_me.training.strategies import STRATEGIES

app = typer.Typer(
    name="plm",
    cls=Overview,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=(
        "Predict readmission, length of stay and drugs from hospital records, "
        "and show [bold]which earlier patients[/] each prediction leans on.\n\n"
        "Everything runs on this machine; patient data never leaves it."
    ),
    epilog=(
        "A first walk: [bold]plm synthesize --patients 500 --out hospital[/], then "
        "[bold]plm prepare mimic4 hospital --out cohort[/], then [bold]plm audit cohort --task readmission[/]. "
        "Every command explains itself with [bold]--help[/]."
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
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Hold the options that come before any command."""


app.command()(records.prepare)
app.command()(records.synthesize)
app.add_typer(codes_app, name="codes")
app.add_typer(backbones_app, name="backbones")
app.add_typer(task_app, name="task")
app.add_typer(bank_app, name="bank")
app.command()(tasks.audit)
app.command()(tasks.show)
app.command()(graph.graph)
app.command()(training.train)
app.command()(training.predict)
app.command()(training.plan)
app.command()(tuning.tune)
app.command()(training.systems)
app.command("settings")(settings.settings)
app.command()(evaluation.evaluate)
app.command()(evaluation.calibrate)
app.command()(evaluation.compare)
app.command()(evaluation.export)
app.command()(experiment.experiment)
app.command()(explanation.explain)
app.command()(faithfulness.faithfulness)
app.command()(report.report)
app.add_typer(serve_app, name="serve")


def _flowing(text: str) -> str:
    """Join the lines of each paragraph, so that a help text fits any terminal; examples keep their lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if "\n    " in part else part.replace("\n", " ") for part in paragraphs)


for _typer in (app, codes_app, backbones_app, task_app, bank_app, serve_app):
    for _command in _typer.registered_commands:
        _command.help = _flowing(_command.callback.__doc__ or "") if _command.callback else None


#: The values of options that choose among few, by the option's name, where they are the same in every command.
_CHOICES = {
    "strategy": "|".join(STRATEGIES),
    "preset": "|".join(sorted(path.stem for path in Path(presets.__path__[0]).glob("*.json"))),
    "split": "test|validation",
    "calibrate": "logistic|isotonic|none",
    "method": "logistic|isotonic|none",
    "self_loop": "one|own_codes",
    "negative_stays": "refuse|drop",
}
#: The same where commands differ.
_CHOICES_OF = {"graph": {"references": "cohort|bank"}, "faithfulness": {"references": "shown|all"}}


def with_named_values(command: Any, name: str = "") -> Any:
    """Let the help of a command and of all below it name the values of choices, and call a flag a flag."""
    for parameter in command.params:
        choices = _CHOICES_OF.get(name, {}).get(parameter.name) or _CHOICES.get(parameter.name)
        if getattr(parameter, "is_flag", False):
            parameter.metavar = "flag"
        elif choices and parameter.metavar is None and parameter.param_type_name == "option":
            parameter.metavar = choices
    for below_name, below in getattr(command, "commands", {}).items():
        with_named_values(below, below_name)
    return command


#: What can be wrong with a path, and what to do.
_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file: check it",
    errno.EISDIR: "this is a folder: give a file",
    errno.EEXIST: "choose another name",
    errno.EACCES: "choose a place where you may read and write",
    errno.EPERM: "choose a place where you may read and write",
    errno.EROFS: "this place can only be read: choose another",
    errno.ENOSPC: "the disk is full: free some space and run the same command again",
    errno.EDQUOT: "your share of the disk is full: free some space and run the same command again",
    errno.EFBIG: "files may not grow so large here (ulimit -f, or the file system): raise the limit",
    errno.ENAMETOOLONG: "choose a shorter name",
}


#: What a shell reports for a command that was interrupted.
_STOPPED = 130


def _path_problem(error: OSError) -> PlmError | None:
    """Say what is wrong with a path; None for an error that is none of the user's making."""
    if error.errno not in _REMEDIES:
        return None
    where = f"'{error.filename}': " if error.filename else ""
    return PlmError(f"{where}{os.strerror(error.errno).lower()}", remedy=_REMEDIES[error.errno])


def _lacks_memory(error: MemoryError | RuntimeError) -> bool:
    """Tell whether an array or a tensor did not fit."""
    words = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


#: What helps a command that needs too much memory; commands without a setting for it are not named.
_SMALLER = {
    **dict.fromkeys(
        ("train", "tune", "experiment", "plan", "graph"),
        "choose smaller settings with --set (batch_size, max_tokens, embedding_width, graph.max_neighbors); plm plan "
        "estimates the memory of a training",
    ),
    "prepare": "read fewer tables at once with POLARS_MAX_THREADS=1, or split the source by patients",
}


def _memory_problem(error: MemoryError | RuntimeError, command: list[str]) -> PlmError:
    """Say in numbers what did not fit: what was asked for, what is free, and what this process has already."""
    import psutil

    from patients_like_me.workers import peak_gib

    memory = psutil.virtual_memory()
    asked = _bytes_asked_for(str(error))
    wanted = "" if asked is None else f"{asked / 2**30:,.1f} GiB more were asked for, "
    remedy = _SMALLER.get(command[0] if command else "", "close other programs, or use a machine with more memory")
    return PlmError(
        f"this needs more memory than the machine has: {wanted}{memory.available / 2**30:,.1f} of "
        f"{memory.total / 2**30:,.1f} GiB are free, and plm has used {peak_gib():,.1f} GiB",
        remedy=remedy,
    )


def _bytes_asked_for(message: str) -> float | None:
    """Return the size that numpy, torch or polars name when an array does not fit.

    >>> _bytes_asked_for("Unable to allocate 2.00 GiB for an array"), _bytes_asked_for("you tried to allocate 12 bytes")
    (2147483648.0, 12.0)
    """
    units = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50, "EiB": 2**60}
    found = re.search(r"allocat\w* ([\d.]+) (\w+)", message)
    return float(found[1]) * units[found[2]] if found and found[2] in units else None


def _end_with(error: PlmError) -> NoReturn:
    typer.secho(f"plm: {printable_lines(error)}", err=True, fg=typer.colors.RED)
    sys.exit(2)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Print what is said about a part of another package as one sentence; other warnings as Python shows them."""
    if issubclass(category, LeftOutWarning):
        typer.secho(f"plm: {printable_lines(message)}", err=True, fg=typer.colors.YELLOW)
    else:
        _python_shows(message, category, *place, **more)


_python_shows = warnings.showwarning


def main() -> None:
    """Run ``plm``; what a user can fix ends in one sentence and exit code 2, never in a traceback."""
    warnings.showwarning = _show_warning
    try:
        # A shell that completes a command line asks for the options of any command.
        called = app if "_PLM_COMPLETE" in os.environ else with_options_of(app, sys.argv[1:])
        with_named_values(typer.main.get_command(called))()
    except PlmError as error:
        _end_with(error)
    except OSError as error:
        if (sentence := _path_problem(error)) is None:
            raise
        _end_with(sentence)
    except (MemoryError, RuntimeError) as error:
        if not _lacks_memory(error):
            raise
        _end_with(_memory_problem(error, sys.argv[1:2]))
    except KeyboardInterrupt as stopped:
        _end_stopped(stopped)
    except SystemExit as end:
        # Typer ends a command that was interrupted without a word.
        if end.code == _STOPPED and isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):
            _end_stopped(end)
        raise


def _end_stopped(stopped: BaseException) -> NoReturn:
    from patients_like_me.files import end_open_blocks

    end_open_blocks(stopped)
    typer.secho("plm: stopped; nothing half-written was left behind", err=True)
    sys.exit(_STOPPED)
