"""Put tables into a page that is written by hand: each between two comments that name it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.result_table import ResultTable
from patients_like_me.files import atomic_file

_PLACE: Final = "<!-- table {label} -->\n{text}<!-- end of table -->"
_ANY_PLACE: Final = re.compile(r"<!-- table (?P<label>\S+) -->\n.*?<!-- end of table -->", re.DOTALL)


def labels_of_page(text: str) -> list[str]:
    r"""Return the labels of the tables that a page has a place for.

    >>> labels_of_page("a\n<!-- table diabetes-readmission -->\n<!-- end of table -->\nb")
    ['diabetes-readmission']
    """
    return [found["label"] for found in _ANY_PLACE.finditer(text)]


def filled_page(text: str, tables: Sequence[ResultTable]) -> str:
    """Return a page with these tables at their places; other places, and everything around them, stay as they are."""
    written = {table.label: table for table in tables}

    def place(found: re.Match[str]) -> str:
        table = written.get(found["label"])
        if table is None:
            return found[0]
        return _PLACE.format(label=table.label, text=f"\n{_without_title(table)}\n")

    return _ANY_PLACE.sub(place, text)


def fill_page(path: Path, tables: Sequence[ResultTable]) -> list[str]:
    """Fill the places of a page; return the labels that it has no place for."""
    if not path.is_file():
        raise PlmError(f"there is no page '{path}'", remedy="give a Markdown file with --page")
    text = path.read_text(encoding="utf-8")
    places = labels_of_page(text)
    if not any(table.label in places for table in tables):
        labels = ", ".join(table.label for table in tables)
        raise PlmError(
            f"the page '{path}' has no place for any of the tables {labels}",
            remedy=f"put '<!-- table {tables[0].label if tables else 'LABEL'} -->' and '<!-- end of table -->' into it",
        )
    with atomic_file(path) as temporary:
        temporary.write_text(filled_page(text, tables), encoding="utf-8")
    return [table.label for table in tables if table.label not in places]


def _without_title(table: ResultTable) -> str:
    """Return the table without its heading: the page has headings of its own."""
    from dataclasses import replace

    return replace(table, title="").markdown()
