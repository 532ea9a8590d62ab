"""Records that come as files or pasted text: own tables, and rows copied from a spreadsheet.

Files are written into a private folder for the moment in which they are prepared, and removed at once.
"""

from __future__ import annotations

import csv
import gzip
import io
import logging
import re
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from patients_like_me.codes.coverage import UNMAPPED
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import TABLE_OF_KIND, Cohort, Kind
from patients_like_me.records.ids import normal_ids
from patients_like_me.records.newcomers import note_on_unknown, notes_on_newcomers
from patients_like_me.records.prepare import prepare
from patients_like_me.records.source_files import open_table
from patients_like_me.serve.guard import described
from patients_like_me.serve.parquet_uploads import TooLargeError, UnfitParquetError, sound_parquet
from patients_like_me.serve.problems import FieldProblem, FieldProblems
from patients_like_me.serve.reading import UNREADABLE, Notes

LOG: Final = logging.getLogger("patients_like_me.serve")
TABLES: Final = ("visits", "events", "names")
ENDINGS: Final = (".csv", ".csv.gz", ".parquet", ".ndjson", ".ndjson.gz")
MOST_UPLOADED: Final = 1000
#: A small file can unpack to any size.
MOST_UNPACKED: Final = 64 * 2**20
#: Characters of one text, as in the API; the names of codes can be long.
LONGEST_TEXT: Final[Mapping[str, int]] = {"visits": 200, "events": 200, "names": 1000}
_KINDS: Final[Mapping[str, Kind]] = {
    "diagnosis": "diagnosis",
    "diagnoses": "diagnosis",
    "dx": "diagnosis",
    "procedure": "procedure",
    "procedures": "procedure",
    "medication": "medication",
    "medications": "medication",
    "drug": "medication",
    "drugs": "medication",
}
_PERSON: Final = ("age", "sex")
MOST_ROWS: Final = 2000
#: So much of a word that is no kind is repeated.
LONGEST_KIND: Final = 30
#: An age, or the number of a visit.
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


def cohort_of_files(contents: Mapping[str, bytes], names: Mapping[str, str]) -> tuple[Cohort, Notes]:
    """Return the patients of own tables (docs/own-tables.md) as a cohort, with what was left out of each.

    ``contents`` are the files by table, ``names`` their names, whose endings tell the form.
    """
    if unknown := sorted(set(contents) - set(TABLES)):
        raise FieldProblems([FieldProblem(unknown[0], f"there is no such table; send {', '.join(TABLES)}")])
    if missing := [name for name in TABLES[:2] if not contents.get(name)]:
        raise FieldProblems([FieldProblem(name, "this table is needed") for name in missing])
    with tempfile.TemporaryDirectory(prefix="plm-uploaded-") as temporary:
        folder = Path(temporary) / "tables"
        folder.mkdir()
        for table, content in contents.items():
            given = names.get(table, "").lower()
            ending = next((each for each in sorted(ENDINGS, key=len, reverse=True) if given.endswith(each)), None)
            if ending is None:
                raise FieldProblems([FieldProblem(table, f"the file must end in {', '.join(ENDINGS)}")])
            (folder / f"{table}{ending}").write_bytes(_within_limits(table, ending, content))
        try:
            prepare("tables", folder, Path(temporary) / "cohort", reading={"without_events": True})
        except PlmError as error:
            raise _in_words(error, folder) from None
        except UNREADABLE as error:
            LOG.warning("tables could not be read: %s", described(error))
            words = "these tables cannot be read; send them in the form of docs/own-tables.md"
            raise FieldProblems([FieldProblem("visits", words)]) from None
        cohort = replace(Cohort.load(Path(temporary) / "cohort"), folder=None)
        unmapped = pl.read_parquet(Path(temporary) / "cohort" / "unmapped.parquet")
        codes = unmapped.filter(pl.col("way") == UNMAPPED)["code"].unique(maintain_order=True).to_list()
        of_all = notes_on_newcomers(cohort.about)
        notes = tuple((*own, *of_all) for own in _notes_of_each(cohort, codes, next(folder.glob("events.*"))))
    if cohort.patients.height > MOST_UPLOADED:
        raise FieldProblems([FieldProblem("visits", f"more than {MOST_UPLOADED:,} patients; serve them with --cohort")])
    return cohort, notes


def _notes_of_each(cohort: Cohort, codes: Sequence[str], events: Path) -> Notes:
    """Return the codes that were left out of each patient: nobody's page names a code of another."""
    if not codes:
        return ((),) * cohort.patients.height
    table = open_table(events, {"visit_id": pl.String, "code": pl.String}).collect()
    owners = cohort.visits.select("visit_id", "subject")
    found = (
        table.with_columns(normal_ids(table["visit_id"]), pl.col("code").str.strip_chars())
        .filter(pl.col("code").is_in(codes))
        .join(owners, on="visit_id", how="inner")
        .select("subject", "code")
        .unique()
    )
    own: dict[int, set[str]] = {}
    for subject, code in found.iter_rows():
        own.setdefault(subject, set()).add(code)
    return tuple(
        note_on_unknown([code for code in codes if code in own.get(subject, ())])
        for subject in cohort.patients["subject"].to_list()
    )


def _within_limits(table: str, ending: str, content: bytes) -> bytes:
    """Return a file that stays small when it is unpacked; nothing is unpacked far beyond the limit."""
    size = len(content)
    try:
        if ending.endswith(".gz"):
            with gzip.open(io.BytesIO(content)) as packed:
                size = 0
                while size <= MOST_UNPACKED and (piece := packed.read(2**20)):
                    size += len(piece)
        elif ending == ".parquet":
            return sound_parquet(content, most_bytes=MOST_UNPACKED, longest_text=LONGEST_TEXT[table])
    except (OSError, EOFError, zlib.error):
        words = "the file cannot be unpacked: it is damaged, or of another form than its name says"
        raise FieldProblems([FieldProblem(table, words)]) from None
    except TooLargeError:
        size = MOST_UNPACKED + 1
    except UnfitParquetError as unfit:
        raise FieldProblems([FieldProblem(table, str(unfit))]) from None
    if size > MOST_UNPACKED:
        raise FieldProblems([FieldProblem(table, f"the file unpacks to more than {MOST_UNPACKED // 2**20} MiB")])
    return content


def _in_words(error: PlmError, folder: Path) -> FieldProblems:
    """Speak of a table where a sentence names its temporary file."""
    problem, field = error.problem, "visits"
    for path in sorted(folder.iterdir(), reverse=True):
        table = path.name.split(".")[0]
        if f"'{path}'" in problem:
            field = table
        problem = problem.replace(f"the table '{path}'", f"'{path}'").replace(f"'{path}'", f"the table {table}")
    problem = problem.replace(f"'{folder}'", "the tables").replace(str(folder), "the tables")
    words = f"{problem}; {error.remedy}" if error.remedy else problem
    return FieldProblems([FieldProblem(field, printable(words))])


def pasted_newcomer(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    r"""Return one patient from rows that were copied from a spreadsheet, and the row that each field comes from.

    Cells are divided by tabs, semicolons or commas. A row is ``kind, code`` or ``kind, code, visit``; the visit is a
    number or a date, and rows without one belong to the last. Rows ``age, 71`` and ``sex, F`` describe the patient. A
    heading is skipped.

    >>> patient, rows = pasted_newcomer("age,71\ndiagnosis,I50.9,1\ndrug,furosemide 40 mg,2")
    >>> patient["visits"], rows["visits.1.medications.0"]
    ([{'diagnoses': ['I50.9']}, {'medications': ['furosemide 40 mg']}], 3)
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise FieldProblems([FieldProblem("rows", "nothing was pasted")])
    if len(lines) > MOST_ROWS:
        raise FieldProblems([FieldProblem("rows", f"more than {MOST_ROWS:,} rows")])
    divider = next((sign for sign in ("\t", ";", ",") if sign in lines[0][1]), ",")
    person: dict[str, Any] = {}
    rows: dict[str, int] = {}
    visits: dict[str, list[tuple[Kind, str, int]]] = {}
    undated: list[tuple[Kind, str, int]] = []
    problems = []
    for number, line in lines:
        try:
            cells = [
                cell.strip() for cell in next(csv.reader([line], delimiter=divider, skipinitialspace=True, strict=True))
            ]
        except csv.Error:
            cells = [""]
        word = cells[0].lower()
        if number == lines[0][0] and word in ("kind", "what", "type"):
            continue
        value = cells[1] if len(cells) > 1 else ""
        if word in _PERSON and value:
            if word in person:
                problems.append(FieldProblem(f"row {number}", f"the {word} is given twice, first in row {rows[word]}"))
                continue
            person[word] = int(value) if word == "age" and _NUMBER.fullmatch(value) else value
            rows[word] = number
        elif word.split("/")[0] in _KINDS and value:
            code = f"{word.split('/')[1]}:{value}" if "/" in word else value
            when = cells[2] if len(cells) > 2 else ""
            # 1 and 01 are one visit.
            when = str(int(when)) if _NUMBER.fullmatch(when) else when
            (visits.setdefault(when, []) if when else undated).append((_KINDS[word.split("/")[0]], code, number))
        else:
            problems.append(FieldProblem(f"row {number}", _why_no_row(cells[0], value)))
    by_number = all(_NUMBER.fullmatch(when) for when in visits)
    if not by_number and any(_NUMBER.fullmatch(when) for when in visits):
        first = min(number for when, codes in visits.items() if _NUMBER.fullmatch(when) for _, _, number in codes)
        problems.append(FieldProblem(f"row {first}", "name the visits all by numbers, or all by dates"))
    if problems:
        raise FieldProblems(problems[:20])
    keys = sorted(visits, key=int) if by_number else sorted(visits)
    if not keys:
        keys, visits = [""], {"": []}
    visits[keys[-1]] += undated
    found: list[dict[str, Any]] = []
    for place, key in enumerate(keys):
        visit: dict[str, Any] = {} if by_number else {"admission": key}
        for kind, code, number in visits[key]:
            rows.setdefault(f"visits.{place}.admission", number)
            codes = visit.setdefault(TABLE_OF_KIND[kind], [])
            rows[f"visits.{place}.{TABLE_OF_KIND[kind]}.{len(codes)}"] = number
            codes.append(code)
        found.append(visit)
    return {**person, "visits": found}, rows


def _why_no_row(kind: str, value: str) -> str:
    """Say what is wrong with a pasted row; what stands where the kind belongs is repeated, shortened.

    >>> _why_no_row("lab", "4.1")
    "there is no kind 'lab'; write 'kind, code' or 'kind, code, visit', the kind diagnosis, procedure or medication"
    >>> _why_no_row("diagnosis", "")
    "the code is missing; write 'kind, code' or 'kind, code, visit'"
    """
    form = "write 'kind, code' or 'kind, code, visit'"
    known = kind.lower().split("/")[0] in _KINDS
    if known or kind.lower() in _PERSON:
        return f"the {'code' if known else kind.lower()} is missing; {form}"
    if not kind:
        return form
    shown = printable(kind if len(kind) <= LONGEST_KIND else f"{kind[:LONGEST_KIND]}...")
    return f"there is no kind '{shown}'; {form}, the kind diagnosis, procedure or medication"


def in_rows(fields: Sequence[FieldProblem], rows: Mapping[str, int]) -> list[FieldProblem]:
    """Say of which pasted row a problem is, where its field comes from one.

    >>> in_rows([FieldProblem("visits.0.admission", "not a date")], {"visits.0.admission": 3})
    [FieldProblem(path='row 3', message='not a date')]
    """
    return [FieldProblem(f"row {rows[field.path]}", field.message) if field.path in rows else field for field in fields]
