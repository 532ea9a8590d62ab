"""Text that would steer a terminal, a spreadsheet, a page or a figure, in every place where a hospital writes text."""

from __future__ import annotations

import csv
import random
import re
import shutil
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree as ET

from attack.outcome import Counts, Told, judge, plm
from attack.tables import own_tables

Draw = random.Random
TEXTS = [
    "x[/red]y", "[bold]x", "[link=file:///etc]x[/link]", "[/]", "\\[x]", "\x1b[31mred", "\x1b]0;title\x07", "\x9b31m",
    "\x1b]8;;http://x\x1b\\link", "=1+1", "@SUM(A1)", "+1", "-1+2", "=cmd|' /C calc'!A0", "\tx", "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>", "\"><b>", "{{7*7}}", "{% x %}", "</svg><script>", "a\u202eb", "a\u0000b", "$\\input{x}$",
    "%s%n", "../../x", "| a | b |", "`x`", "a&b<c>", "\ud7ff\ue000", "𝒳" * 40,
]  # fmt: skip
_TAGS = re.compile(r"<script>alert|<img src=x", re.IGNORECASE)


class InjectionAttack:
    """Write texts into fields, names, codes, labels and paths; run every command that prints or writes them."""

    def __init__(self, stage: object) -> None:
        self.room: Path = stage.room / "injections"  # type: ignore[attr-defined]

    def attack(self, seed: int, counts: Counts) -> str:
        """Draw texts and places; return whether the tables were accepted."""
        draw = Draw(seed)
        shutil.rmtree(self.room, ignore_errors=True)
        text = draw.choice(TEXTS)
        folder = self.room / (draw.choice(["plain", "a[/red]b", "[bold]c", "x'y z", "=1"]))
        place = self._write(folder, text, draw)
        story = f"injections seed {seed}: {text!r} in {place}, below {folder.name}"
        counts.injections += 1
        cohort, run = folder / "cohort", folder / "run"
        commands: list[list[str | Path]] = [
            ["prepare", "tables", folder / "source", "--out", cohort],
            ["audit", cohort, "--task", "outcome"],
            ["show", cohort, "--task", "outcome"],
            ["task", "show", "outcome", "--cohort", cohort],
            ["graph", cohort, "--task", "outcome", "--tau", "1"],
            ["train", cohort, "--task", "outcome", "--system", "logistic", "--out", run],
            ["evaluate", run, "--replicates", "5"],
            ["report", run, "--replicates", "5"],
            ["export", run, "--out", folder / "export"],
            ["compare", run, run, "--out", folder / "comparison", "--replicates", "5"],
            ["predict", run, cohort, "--out", folder / "p.parquet"],
        ]
        with mock.patch.dict("os.environ", {"PLM_CODES": str(self.room / "codes")}):
            for words in commands:
                told = plm(*words)
                judge(counts, told, f"{story}: plm {words[0]}")
                self._judge_terminal(counts, told, f"{story}: plm {words[0]}")
                if words[0] == "prepare" and told.code:
                    return "refused"
        for path in sorted(self.room.rglob("*")):
            if path.is_file() and "source" not in path.parts:
                self._judge_file(counts, path, f"{story}: {path.relative_to(self.room)}")
        return "accepted"

    def _write(self, folder: Path, text: str, draw: Draw) -> str:
        tables = own_tables(seed=3, patients=40)
        place = draw.choice(["insurance", "site", "unit", "religion", "code", "name", "value", "ethnicity"])
        table = {"code": "events", "name": "names", "value": "labels"}.get(place, "visits")
        header = tables[table][0].split(",")
        column = header.index(place)
        quoted = '"' + text.replace('"', '""') + '"'
        for row in range(1, len(tables[table])):
            cells = tables[table][row].split(",")
            if place == "code" and "/own" not in tables[table][row]:
                continue
            if draw.random() < 0.5:
                cells[column] = quoted
            tables[table][row] = ",".join(cells)
        (folder / "source").mkdir(parents=True)
        for name, lines in tables.items():
            (folder / "source" / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
        return f"{table}.{place}"

    def _judge_terminal(self, counts: Counts, told: Told, story: str) -> None:
        if any(sign in told.output for sign in "\x1b\x9b\x07\x00"):
            counts.blame("silent_changes", f"{story}: control characters reach the terminal")

    def _judge_file(self, counts: Counts, path: Path, story: str) -> None:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as stream:
                cells = [cell for row in csv.reader(stream) for cell in row]
            if bad := [cell for cell in cells if cell[:1] in tuple("=@+-\t\r") and not _is_number(cell)]:
                counts.blame("silent_changes", f"{story}: a cell that is a formula: {bad[0][:30]!r}")
        elif path.suffix == ".svg":
            try:
                ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314
            except (ET.ParseError, UnicodeDecodeError) as error:
                counts.blame("silent_changes", f"{story}: {error}")
        elif path.suffix == ".html" and (found := _TAGS.search(path.read_text(encoding="utf-8"))):
            counts.blame("silent_changes", f"{story}: {found.group()} in a page")
        elif path.suffix in (".html", ".md", ".tex", ".txt") and "\x1b" in path.read_text(encoding="utf-8"):
            counts.blame("silent_changes", f"{story}: ESC in a page")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
