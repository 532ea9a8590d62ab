"""A table of means over seeds, in Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from patients_like_me.evaluation.intervals import SeedSpread


NOT_AVAILABLE: Final = "n/a"
PREAMBLE: Final = "% needs \\usepackage{booktabs}\n\\providecommand{\\meanstd}[2]{#1\\,{\\scriptsize$\\pm$\\,#2}}\n"


@dataclass(frozen=True)
class Column:
    """One column of numbers: the headings above it, how numbers are written, and which one is the best."""

    name: str
    groups: tuple[str, ...] = ()
    scale: float = 100.0
    digits: int = 1
    best: Literal["high", "low"] | None = "high"

    def shown(self, value: float) -> str:
        """Write one number.

        >>> Column("AUPRC").shown(0.4861), Column("seconds", scale=1, digits=2).shown(3)
        ('48.6', '3.00')
        """
        return f"{self.scale * value:,.{self.digits}f}"


@dataclass(frozen=True)
class Row:
    """One row: its headings on the left, and a cell per column; ``mark`` says in words why the row stands out.

    A cell is a mean over seeds, a plain number, words, or None where it is not available.
    """

    heads: tuple[str, ...]
    cells: tuple[SeedSpread | float | str | None, ...]
    mark: str = ""


@dataclass(frozen=True)
class ResultTable:
    """Rows and columns with a caption. The best mean of a column is bold, within the rows of one first heading."""

    caption: str
    label: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def markdown(self) -> str:
        """Return the table as Markdown, the caption above it."""
        best = self._best()
        titles = [*self.heads, *(" ".join([*column.groups, column.name]) for column in self.columns)]
        lines = [
            self.caption,
            "",
            "| " + " | ".join(_bars(title) for title in titles) + " |",
            "| " + " | ".join(["---"] * len(self.heads) + ["---:"] * len(self.columns)) + " |",
        ]
        for number, row in enumerate(self.rows):
            heads = [*row.heads[:-1], f"{row.heads[-1]} ({row.mark})" if row.mark else row.heads[-1]]
            cells = []
            for place, (column, cell) in enumerate(zip(self.columns, row.cells, strict=True)):
                text = self._plain(column, cell)
                cells.append(f"**{text}**" if (number, place) in best else text)
            lines.append("| " + " | ".join(_bars(text) for text in [*heads, *cells]) + " |")
        return "\n".join(lines) + "\n"

    def records(self) -> list[dict[str, object]]:
        """Return one record per number: headings, mean, standard deviation and runs; nothing is rounded."""
        found: list[dict[str, object]] = []
        for row in self.rows:
            heads = dict(zip((head.lower() for head in self.heads), row.heads, strict=True))
            for column, cell in zip(self.columns, row.cells, strict=True):
                groups = {f"heading_{level + 1}": name for level, name in enumerate(column.groups)}
                numbers: dict[str, object] = {}
                if isinstance(cell, (str, float)):
                    numbers = {"mean": cell}
                elif cell is not None:
                    numbers = {"mean": cell.mean, "sd": cell.deviation, "runs": cell.seeds}
                found.append({**heads, **groups, "column": column.name, **numbers, "mark": row.mark})
        return found

    def latex(self) -> str:
        """Return the table as LaTeX with booktabs rules and headings over groups of columns."""
        from patients_like_me.evaluation.tables import latex_text

        best = self._best()
        lines = [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{latex_text(self.caption)}}}",
            rf"\label{{tab:{self.label}}}",
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
                    text = _latex_cell(column, cell)
                    cells.append(rf"\textbf{{{text}}}" if (number, place) in best else text)
                lines.append(" & ".join([*heads, *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}"]
        return PREAMBLE + "\n".join(lines) + "\n"

    def _latex_headings(self) -> Iterator[str]:
        from patients_like_me.evaluation.tables import latex_text

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

    def _best(self) -> set[tuple[int, int]]:
        """Return row and column of the best mean of each column; equal ones as they are written are all best."""
        found = set()
        for block in self._blocks():
            for place, column in enumerate(self.columns):
                numbers: dict[int, float] = {}
                for number in block:
                    cell = self.rows[number].cells[place]
                    if cell is not None and not isinstance(cell, str):
                        numbers[number] = cell if isinstance(cell, float) else cell.mean
                if len(numbers) < 2 or column.best is None:
                    continue
                top = column.shown((max if column.best == "high" else min)(numbers.values()))
                found |= {(number, place) for number, mean in numbers.items() if column.shown(mean) == top}
        return found

    def _plain(self, column: Column, cell: SeedSpread | float | str | None) -> str:
        if cell is None:
            return NOT_AVAILABLE
        if isinstance(cell, str):
            return cell
        if isinstance(cell, float):
            return column.shown(cell)
        mean = column.shown(cell.mean)
        return mean if cell.deviation is None else f"{mean} ± {column.shown(cell.deviation)}"


def csv_of(tables: Sequence[ResultTable]) -> str:
    """Return tables as one CSV with a line per number."""
    records = [record for table in tables for record in table.records()]
    last = ["column", "mean", "sd", "runs", "mark"]
    first = [name for name in dict.fromkeys(name for record in records for name in record) if name not in last]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*first, *last], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _latex_cell(column: Column, cell: SeedSpread | float | str | None) -> str:
    from patients_like_me.evaluation.tables import latex_text

    if cell is None:
        return "N/A"
    if isinstance(cell, str):
        return latex_text(cell)
    if isinstance(cell, float):
        return column.shown(cell)
    mean = column.shown(cell.mean)
    return mean if cell.deviation is None else rf"\meanstd{{{mean}}}{{{column.shown(cell.deviation)}}}"


def _bars(text: str) -> str:
    return text.replace("|", "\\|")
