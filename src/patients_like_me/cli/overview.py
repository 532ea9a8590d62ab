"""What ``plm --help`` prints: the commands in the order of the work, laid out as plain text.

The help of a single command is drawn by rich. Loading rich takes longer than all the rest of ``plm --help``, and the
first look at a program should not have to wait for it. For the same reason the options of a command are worked out only
when that command is called.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import Any

from typer import Typer
from typer.core import TyperGroup
from typer.main import get_command_name

#: The steps of the work and the commands of each, in the order in which a newcomer meets them.
STEPS = {
    "From records to a cohort": ("prepare", "synthesize", "audit", "show", "codes", "task"),
    "From a cohort to a run": ("graph", "plan", "train", "tune", "systems", "settings", "backbones"),
    "What a run is worth": ("evaluate", "calibrate", "compare", "experiment", "report", "export"),
    "One patient, and the earlier patients behind the answer": ("predict", "explain", "faithfulness", "bank", "serve"),
}
#: The marks of rich, such as [bold]; the names of arguments in usage lines are in capitals and stay.
_MARKS = re.compile(r"\[/?[a-z ]*\]")


class Overview(TyperGroup):
    """The commands of ``plm``, shown by the steps of the work."""

    def format_help(self, context: Any, formatter: Any) -> None:
        """Write usage, the commands step by step, the options, and a first walk."""
        self.format_usage(context, formatter)
        for paragraph in _plain(self.help or "").split("\n\n"):
            formatter.write_paragraph()
            formatter.write_text(paragraph)
        for step, names in STEPS.items():
            with formatter.section(step):
                formatter.write_dl([(name, _first_paragraph(self.commands[name])) for name in names])
        with formatter.section("Options"):
            records = [parameter.get_help_record(context) for parameter in self.get_params(context)]
            formatter.write_dl([(name.split("  ")[0], text) for name, text in filter(None, records)])
        formatter.write_paragraph()
        formatter.write_text(_plain(self.epilog or ""))


def with_options_of(app: Typer, arguments: Sequence[str]) -> Typer:
    """Return the app with the options of the command that is called; the others keep their names and help alone."""
    called = next((word for word in arguments if not word.startswith("-")), None)
    found = copy(app)
    found.registered_commands = [
        info if _name_of(info) == called else _without_options(info) for info in app.registered_commands
    ]
    found.registered_groups = [copy(info) for info in app.registered_groups]
    for group in found.registered_groups:
        if group.name != called and group.typer_instance is not None:
            group.typer_instance = below = copy(group.typer_instance)
            below.registered_commands = [_without_options(info) for info in below.registered_commands]
    return found


def _name_of(info: Any) -> str:
    return str(info.name or get_command_name(info.callback.__name__))


def _without_options(info: Any) -> Any:
    found = copy(info)
    found.name, found.callback = _name_of(info), _nothing
    return found


def _nothing() -> None:
    """Stand for a command that is not called."""


def _first_paragraph(command: Any) -> str:
    return _plain(command.help or "").split("\n\n")[0].strip()


def _plain(text: str) -> str:
    return _MARKS.sub("", text)
