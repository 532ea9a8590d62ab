"""The files of a table: one file, numbered parts, a folder of the table's name, or one file in each of some folders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from patients_like_me.errors import PlmError

#: How the name of a table's file ends; a folder that holds one table in several forms is refused.
ENDINGS: Final = (".parquet", ".csv", ".csv.gz", ".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz")
NDJSON: Final = (".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz")
_DEEPEST_LEVEL: Final = 3
#: What may follow a table's name where it is stored in numbered parts: -0001, _part3, .7, -0-of-8.
_PART: Final = r"[-_.]?(part|shard|chunk)?[-_.]?\d+([-_.]of[-_.]\d+)?"


def ending_of(path: Path) -> str:
    """Return the ending of a table's file; an empty text for any other file."""
    name = path.name.lower()
    return next((ending for ending in sorted(ENDINGS, key=len, reverse=True) if name.endswith(ending)), "")


def files_of_table(folder: Path, table: str) -> list[Path]:
    """Return the one file of a table that is nearest to a folder, or else the parts in which it is stored."""
    files = [(path, ending) for path in files_below(folder, table) if (ending := ending_of(path))]
    whole = [(path, ending) for path, ending in files if path.name.lower() == table + ending]
    in_parts = [
        (path, ending)
        for path, ending in files
        if path.parent.name.lower() == table or re.fullmatch(table + _PART, path.name.lower().removesuffix(ending))
    ]
    for candidates, are_parts in ((whole, False), (in_parts, True)):
        if not candidates:
            continue
        level = min(len(path.parts) for path, _ in candidates)
        nearest = [(path, ending) for path, ending in candidates if len(path.parts) == level]
        if not are_parts and (beside := _parts_beside(nearest[0][0], [path for path, _ in in_parts], table)):
            raise PlmError(
                f"'{beside.parent}' holds a part of the table '{table}', '{beside.name}', and "
                f"'{nearest[0][0]}' is the whole",
                remedy="keep one of them: only you know which is right",
            )
        places = sorted({path.parent for path, _ in nearest})
        if len(places) > 1:
            shown = " and ".join(f"'{place}'" for place in places)
            raise PlmError(f"the table '{table}' is in {shown}", remedy="give one of these folders")
        chosen = sorted(path for path, _ in nearest)
        one_of_each = {ending: path.name for path, ending in sorted(nearest, reverse=True)}
        if len(one_of_each) > 1 or (len(chosen) > 1 and not are_parts):
            first, second, *_ = [*one_of_each.values()] if are_parts else [path.name for path in chosen]
            raise PlmError(
                f"the table '{table}' is in '{places[0]}' more than once: '{first}' and '{second}'",
                remedy="keep one of them: only you know which is right",
            )
        return chosen
    return []


def _parts_beside(whole: Path, parts: Sequence[Path], table: str) -> Path | None:
    """Return a numbered part next to the one file of a table, or one in a folder of the table's name next to it."""
    for path in parts:
        numbered = re.fullmatch(table + _PART, path.name.lower().removesuffix(ending_of(path)))
        if path.parent == whole.parent / path.parent.name or (numbered and path.parent == whole.parent):
            return path
    return None


def notes_on_missing_parts(paths: Sequence[Path]) -> list[str]:
    """Say, for each folder, that parts of a table are numbered with a gap: a part may not have been copied."""
    notes = []
    for folder in dict.fromkeys(path.parent for path in paths):
        names = [path.name.lower().removesuffix(ending_of(path)) for path in paths if path.parent == folder]
        numbered = [re.fullmatch(r".*?(\d+)([-_.]of[-_.]\d+)?", name) for name in names]
        if len(names) < 2 or None in numbered:
            continue
        numbers = {int(found[1]) for found in numbered if found}
        missing = max(numbers) - min(numbers) + 1 - len(numbers)
        # With wider gaps they are dates or other numbers that do not count the parts.
        if 0 < missing <= 10 * len(numbers):
            verb = "is" if missing == 1 else "are"
            first = next(path.name for path in paths if path.parent == folder)
            whole = f"from {min(numbers)} to {max(numbers)}"
            notes.append(f"the parts of '{first}' are numbered {whole}, but {missing:,} of these {verb} not there")
    return notes


def files_below(folder: Path, table: str = "") -> Iterator[Path]:
    """Yield the files of a folder; what has the name of the wanted table but is not a file is refused, not skipped."""
    pending = [(folder, 1)]
    while pending:
        current, level = pending.pop()
        for path in sorted(current.iterdir()):
            if path.is_file():
                yield path
            elif table and (ending := ending_of(path)) and path.name.lower() == table + ending:
                raise not_a_file(path)
            elif path.is_dir() and level < _DEEPEST_LEVEL and not _is_passed_over(path):
                pending.append((path, level + 1))


def not_a_file(path: Path) -> PlmError:
    """Say that something with the name of a table is none: it is not the same as a table that is not there."""
    what = "a folder" if path.is_dir() else "a link to nothing" if path.is_symlink() else "a pipe or device"
    return PlmError(f"'{path}' is {what}, not a file", remedy="put the table there or remove it")


def _is_passed_over(folder: Path) -> bool:
    """Hidden folders, and cohorts that were written into the source's own folder."""
    return folder.name.startswith(".") or (folder / "cohort.json").is_file()
