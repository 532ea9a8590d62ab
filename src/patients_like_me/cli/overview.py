"""What ``plm --help`` prints: the commands in the order of the work, laid out as plain text.

The help of a single command is drawn by rich. Loading rich takes longer than all the rest of ``plm --help``, and the
first look at a program should not have to wait for it.
"""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperGroup

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


def _first_paragraph(command: Any) -> str:
    return _plain(command.help or "").split("\n\n")[0].strip()


def _plain(text: str) -> str:
    return _MARKS.sub("", text)
