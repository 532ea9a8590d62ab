"""The report on a run as an object: sections of text, tables and pictures, for a page, JSON or Markdown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["plain", "note", "good", "warning"]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Link:
    """A word in a table that leads to a page beside the report."""

    words: str
    target: str

    def __str__(self) -> str:
        return self.words


Cell = str | Link


@dataclass(frozen=True)
class Table:
    """A table; columns named in ``numbers`` are aligned right.

    ``pictures`` holds a small SVG for each row, or nothing. A table with a ``fold`` is closed under that title.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[str] = frozenset()
    pictures: tuple[str, ...] = ()
    fold: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture with a caption that says how to read it."""

    title: str
    picture: str
    caption: str


Block = Text | Table | Figure


@dataclass(frozen=True)
class Section:
    """A part of the report; ``applies`` is False where it has nothing to say about this run."""

    key: str
    title: str
    blocks: tuple[Block, ...]
    applies: bool = True


def absent(key: str, title: str, reason: str) -> Section:
    """Return a section that says why it does not apply."""
    return Section(key, title, (Text(f"Does not apply: {reason}.", "note"),), applies=False)


@dataclass(frozen=True)
class RunReport:
    """Everything that is said about one run; it holds no id, no date and no count of people under 11."""

    title: str
    task: str
    run: str
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    version: str

    def section(self, key: str) -> Section:
        """Return a section by its key."""
        return next(section for section in self.sections if section.key == key)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data: its words and tables as they are shown, without the pictures."""
        return {
            "title": self.title,
            "task": self.task,
            "run": self.run,
            "version": self.version,
            "summary": list(self.summary),
            "sections": [
                {
                    "key": section.key,
                    "title": section.title,
                    "applies": section.applies,
                    "blocks": [_plain(block) for block in section.blocks],
                }
                for section in self.sections
            ],
        }

    def json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.as_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def markdown(self) -> str:
        """Return the report as Markdown text, without the pictures."""
        from patients_like_me.report.run_page import run_markdown

        return run_markdown(self)

    def html(self) -> str:
        """Return the report as one self-contained page."""
        from patients_like_me.report.run_page import run_page

        return run_page(self)


def _plain(block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"kind": "text", "words": block.words, "tone": block.tone}
    if isinstance(block, Figure):
        return {"kind": "figure", "title": block.title, "caption": block.caption}
    return {
        "kind": "table",
        "caption": block.caption,
        "columns": list(block.columns),
        "rows": [[str(cell) for cell in row] for row in block.rows],
    }
