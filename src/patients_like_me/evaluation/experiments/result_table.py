"""A table of numbers with their spread and intervals: Markdown, CSV, LaTeX, and JSON to build them again from."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final, Literal

from patients_like_me.evaluation.intervals import Interval, SeedSpread
from patients_like_me.evaluation.tables import LATEX_PREAMBLE, fitted_latex, latex_text

MISSING: Final = "n/a"
PREAMBLE: Final = (
    LATEX_PREAMBLE
    + "\\providecommand{\\meanstd}[2]{#1\\,{\\scriptsize$\\pm$\\,#2}}\n"
    + "\\providecommand{\\fromto}[2]{{\\scriptsize(#1 to #2)}}\n"
)
Mark = Literal["best", "second"]


@dataclass(frozen=True)
class Number:
    """A number with the standard deviation over its runs and the interval over patients, where they are known.

    ``signed`` writes the sign of positive numbers too, as for differences.

    >>> Number(0.25, low=0.2, high=0.3).shown(Column("AUROC", scale=1, digits=2))
    '0.25 (0.20 to 0.30)'
    """

    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    runs: int | None = None
    signed: bool = False

    @classmethod
    def of(
        cls,
        value: float | None,
        spread: SeedSpread | None = None,
        interval: Interval | None = None,
        *,
        signed: bool = False,
    ) -> Number | None:
        """Make a number from a value, its spread over seeds, and its interval."""
        if value is None:
            return None
        return cls(
            value,
            None if spread is None else spread.deviation,
            None if interval is None else interval.low,
            None if interval is None else interval.high,
            None if spread is None else spread.seeds,
            signed,
        )

    def shown(self, column: Column) -> str:
        """Write the number with its spread and interval."""
        text = column.shown(self.mean, signed=self.signed)
        if self.sd is not None:
            text += f" ± {column.shown(self.sd)}"
        if self.low is not None and self.high is not None:
            ends = (column.shown(end, signed=self.signed) for end in (self.low, self.high))
            text += f" ({' to '.join(ends)})"
        return text

    def latex(self, column: Column) -> str:
        """Write the same in LaTeX."""
        text = _minus(column.shown(self.mean, signed=self.signed))
        if self.sd is not None:
            text = rf"\meanstd{{{text}}}{{{column.shown(self.sd)}}}"
        if self.low is not None and self.high is not None:
            low, high = (_minus(column.shown(end, signed=self.signed)) for end in (self.low, self.high))
            text += rf" \fromto{{{low}}}{{{high}}}"
        return text


#: A number, a mean over seeds, words, or None where it is not available.
TableCell = Number | SeedSpread | float | str | None


@dataclass(frozen=True)
class Column:
    """One column of numbers: the headings above it, how numbers are written, and which one is the best."""

    name: str
    groups: tuple[str, ...] = ()
    scale: float = 100.0
    digits: int = 1
    best: Literal["high", "low"] | None = "high"

    def shown(self, value: float, *, signed: bool = False) -> str:
        """Write one number.

        >>> Column("AUPRC").shown(0.4861), Column("seconds", scale=1, digits=2).shown(3, signed=True)
        ('48.6', '+3.00')
        """
        return f"{self.scale * value:{'+' if signed else ''},.{self.digits}f}"


@dataclass(frozen=True)
class TableRow:
    """One row: its headings on the left, and a cell per column; ``mark`` says in words why the row stands out."""

    heads: tuple[str, ...]
    cells: tuple[TableCell, ...]
    mark: str = ""


@dataclass(frozen=True)
class ResultTable:
    """Rows and columns with a caption. The best mean of a column is bold, within the rows of one first heading.

    ``second_best`` marks the second best too: underlined in LaTeX, in italics in Markdown. ``title`` is a heading above
    the table in Markdown.
    """

    caption: str
    label: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    title: str = ""
    second_best: bool = False

    def markdown(self) -> str:
        """Return the table as Markdown, title and caption above it."""
        marks = self._marks()
        titles = [*self.heads, *(" ".join([*column.groups, column.name]) for column in self.columns)]
        lines = [
            *([f"### {self.title}", ""] if self.title else []),
            self.caption,
            "",
            "| " + " | ".join(_bars(title) for title in titles) + " |",
            "| " + " | ".join(["---"] * len(self.heads) + ["---:"] * len(self.columns)) + " |",
        ]
        sign = {"best": "**", "second": "*"}
        for number, row in enumerate(self.rows):
            heads = [*row.heads[:-1], f"{row.heads[-1]} ({row.mark})" if row.mark else row.heads[-1]]
            cells = []
            for place, (column, cell) in enumerate(zip(self.columns, row.cells, strict=True)):
                around = sign.get(marks.get((number, place), ""), "")
                cells.append(f"{around}{_plain(column, cell)}{around}")
            lines.append("| " + " | ".join(_bars(text) for text in [*heads, *cells]) + " |")
        return "\n".join(lines) + "\n"

    def records(self) -> list[dict[str, object]]:
        """Return one record per number: headings, mean, standard deviation, interval, runs; nothing is rounded."""
        found: list[dict[str, object]] = []
        for row in self.rows:
            heads = dict(zip((head.lower() for head in self.heads), row.heads, strict=True))
            for column, cell in zip(self.columns, row.cells, strict=True):
                groups = {f"heading_{level + 1}": name for level, name in enumerate(column.groups)}
                number = _number(cell)
                numbers: dict[str, object] = {"mean": cell} if isinstance(cell, str) else {}
                if number is not None:
                    values = {name: getattr(number, name) for name in ("mean", "sd", "low", "high", "runs")}
                    numbers = {name: value for name, value in values.items() if value is not None}
                table = {"table": self.label}
                found.append({**table, **heads, **groups, "column": column.name, **numbers, "mark": row.mark})
        return found

    def latex(self) -> str:
        """Return the table as LaTeX with booktabs rules, headings over groups of columns, fitted to the page."""
        marks = self._marks()
        command = {"best": r"\textbf", "second": r"\underline"}
        lines = [
            rf"\begin{{tabular}}{{{'l' * len(self.heads)}{'c' * len(self.columns)}}}",
            r"\toprule",
            *self._latex_headings(),
            " & ".join(rf"\textbf{{{latex_text(name)}}}" for name in [*self.heads, *(c.name for c in self.columns)])
            + r" \\",
        ]
        for block in self._blocks():
            lines.append(r"\midrule")
            previous: tuple[str, ...] = ()
            for number in block:
                row = self.rows[number]
                heads = [
                    "" if len(self.heads) > 1 and place == 0 and previous[:1] == row.heads[:1] else latex_text(head)
                    for place, head in enumerate(row.heads)
                ]
                if row.mark:
                    heads[-1] += rf" ({latex_text(row.mark)})"
                previous = row.heads
                cells = []
                for place, (column, cell) in enumerate(zip(self.columns, row.cells, strict=True)):
                    text, around = _latex_cell(column, cell), command.get(marks.get((number, place), ""))
                    cells.append(text if around is None else f"{around}{{{text}}}")
                lines.append(" & ".join([*heads, *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        body = fitted_latex(lines, caption=self.caption, label=self.label, environment="table*")
        return PREAMBLE + body

    def as_json(self) -> dict[str, Any]:
        """Return the table as plain data; :func:`table_from_json` reads it."""
        rows = [
            {"heads": list(row.heads), "cells": [_cell_as_json(cell) for cell in row.cells], "mark": row.mark}
            for row in self.rows
        ]
        return {
            "title": self.title,
            "caption": self.caption,
            "label": self.label,
            "heads": list(self.heads),
            "columns": [{**asdict(column), "groups": list(column.groups)} for column in self.columns],
            "rows": rows,
        }

    def _latex_headings(self) -> Iterator[str]:
        levels = max((len(column.groups) for column in self.columns), default=0)
        for level in range(levels):
            parts, rules = [""] * len(self.heads), []
            place = len(self.heads)
            for path, members in groupby(self.columns, key=lambda column: column.groups[: level + 1]):
                width = len(list(members))
                title = latex_text(path[level]) if len(path) > level else ""
                parts.append(rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{title}}}}}")
                if title:
                    rules.append(rf"\cmidrule(lr){{{place + 1}-{place + width}}}")
                place += width
            yield " & ".join(parts) + r" \\"
            yield "".join(rules)

    def _blocks(self) -> list[list[int]]:
        """Return the rows that are compared with each other: those of one first heading, where there are two."""
        if len(self.heads) < 2:
            return [list(range(len(self.rows)))]
        return [
            list(members)
            for _, members in groupby(range(len(self.rows)), key=lambda number: self.rows[number].heads[0])
        ]

    def _marks(self) -> dict[tuple[int, int], Mark]:
        """Return row and column of the best (and second best) means; numbers that look equal are marked alike."""
        found: dict[tuple[int, int], Mark] = {}
        for block in self._blocks():
            for place, column in enumerate(self.columns):
                numbers = {
                    row: cell.mean for row in block if (cell := _number(self.rows[row].cells[place])) is not None
                }
                if len(numbers) < 2 or column.best is None:
                    continue
                ordered = sorted(numbers.values(), reverse=column.best == "high")
                levels = list(dict.fromkeys(column.shown(mean) for mean in ordered))
                names: dict[str, Mark] = {levels[0]: "best"}
                if self.second_best and len(levels) > 1:
                    names[levels[1]] = "second"
                for row, mean in numbers.items():
                    if column.shown(mean) in names:
                        found[row, place] = names[column.shown(mean)]
        return found


def table_from_json(content: Mapping[str, Any]) -> ResultTable:
    """Read what :meth:`ResultTable.as_json` returned."""
    return ResultTable(
        content["caption"],
        content["label"],
        tuple(content["heads"]),
        tuple(Column(**{**column, "groups": tuple(column["groups"])}) for column in content["columns"]),
        tuple(
            TableRow(tuple(row["heads"]), tuple(_cell_from_json(cell) for cell in row["cells"]), row["mark"])
            for row in content["rows"]
        ),
        content["title"],
    )


def csv_of(tables: Sequence[ResultTable]) -> str:
    """Return tables as one CSV with a line per number."""
    records = [record for table in tables for record in table.records()]
    last = ["column", "mean", "sd", "low", "high", "runs", "mark"]
    first = [name for name in dict.fromkeys(name for record in records for name in record) if name not in last]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*first, *last], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _number(cell: TableCell) -> Number | None:
    """Return a cell as a number; None for words and for what is not available."""
    if cell is None or isinstance(cell, str):
        return None
    if isinstance(cell, SeedSpread):
        return Number(cell.mean, cell.deviation, runs=cell.seeds)
    return cell if isinstance(cell, Number) else Number(float(cell))


def _plain(column: Column, cell: TableCell) -> str:
    if isinstance(cell, str):
        return cell
    number = _number(cell)
    return MISSING if number is None else number.shown(column)


def _latex_cell(column: Column, cell: TableCell) -> str:
    if isinstance(cell, str):
        return latex_text(cell)
    number = _number(cell)
    return "N/A" if number is None else number.latex(column)


def _minus(text: str) -> str:
    """Write a minus sign in LaTeX, where a hyphen would be too short."""
    return f"$-${text[1:]}" if text.startswith("-") else text


def _cell_as_json(cell: TableCell) -> Any:
    number = _number(cell)
    return cell if number is None else {k: v for k, v in asdict(number).items() if v is not None and v is not False}


def _cell_from_json(cell: Any) -> TableCell:
    return Number(**cell) if isinstance(cell, dict) else cell


def _bars(text: str) -> str:
    return text.replace("|", "\\|")
