"""Newcomers that are not in files: plain dicts, or frames in the form of docs/own-tables.md.

    {"id": "p1", "age": 71, "sex": "F",
     "visits": [{"admission": "2024-05-03", "discharge": "2024-05-09",
                 "diagnoses": ["I50.9", "icd9:428.0"], "medications": ["furosemide 40 mg"]}]}

Dicts become the frames of a hospital's own tables, and frames take the same way into a cohort as files do, so the
same values are refused with the same sentences. A code may be preceded by its system (``icd9:428.0``, ``atc:C03CA01``);
without one, the first system of docs/own-tables.md holds. A FHIR R4 Bundle takes the way of ``plm prepare fhir``.
"""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from patients_like_me.codes.coverage import UNMAPPED
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted, printable
from patients_like_me.records.cohort import DEMOGRAPHICS, KINDS, TABLE_OF_KIND, Cohort, Kind
from patients_like_me.records.ids import normal_ids
from patients_like_me.records.prepare import prepare
from patients_like_me.records.values import YEARS

#: What ``predict`` and ``explain`` take for new patients beside a cohort.
Newcomers = Mapping[str, Any] | Sequence[Mapping[str, Any]] | Mapping[str, pl.DataFrame]

_UNKNOWN: Final = "codes that no map knows are left out"
#: Notes on a source as a whole, which say nothing about the records of a few patients.
_OF_NO_CONCERN: Final = re.compile(
    r"^the optional table |^the dialect '|^the export has no |have no code of any kind$|"
    r"the table 'names'|encounters? (is|are) neither | rows? of .* (has a|have no) time$"
)
_FRAMES: Final = ("visits", "events", "names")
_TABLES: Final = (pl.DataFrame, pl.LazyFrame)
#: What pydantic calls things, and what a reader of the sentence calls them.
_WORDS: Final = {
    "input should be a valid tuple": "input should be a list",
    "tuple should have at least 1 item after validation, not 0": "at least one visit is needed",
    "input should be a valid dictionary or instance of NewVisit": "a visit should be a dict",
    "input should be a valid string": "input should be text",
}


def _no_truth(given: Any) -> Any:
    """Refuse yes and no as an age, which would be 1 and 0."""
    if isinstance(given, bool):
        raise ValueError("an age should be a whole number")
    return given


Age = Annotated[int, BeforeValidator(_no_truth), Field(ge=0, le=130)]


class NewVisit(BaseModel):
    """One visit of a newcomer; ``discharge`` is missing while the patient is still in hospital."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = Field(None, min_length=1)
    admission: datetime | date | None = None
    discharge: datetime | date | None = None
    age: Age | None = None

    @field_validator("admission", "discharge", mode="before")
    @classmethod
    def _is_a_date(cls, given: Any) -> Any:
        """Refuse a number, which would be read as seconds since 1970."""
        if given is not None and not isinstance(given, str | date):
            raise ValueError("a date should be text such as 2024-05-03, or a date")
        return given

    @field_validator("admission", "discharge", mode="after")
    @classmethod
    def _is_of_our_time(cls, given: datetime | date | None) -> datetime | date | None:
        if given is not None and not YEARS[0] <= given.year <= YEARS[1]:
            raise ValueError(f"{given.year} is not a year of a hospital stay")
        return given

    diagnoses: tuple[str, ...] = ()
    procedures: tuple[str, ...] = ()
    medications: tuple[str, ...] = ()

    def codes(self, kind: Kind) -> tuple[str, ...]:
        """Return the codes of one kind as they were given."""
        codes: tuple[str, ...] = getattr(self, TABLE_OF_KIND[kind])
        return codes


class Newcomer(BaseModel):
    """One patient with the visits up to the one that is predicted, oldest first where they have no dates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = Field(None, min_length=1)
    age: Age | None = Field(None, description="at the last visit")
    sex: str | None = None
    insurance: str | None = None
    language: str | None = None
    religion: str | None = None
    marital_status: str | None = None
    ethnicity: str | None = None
    visits: tuple[NewVisit, ...] = Field(min_length=1)


def cohort_of_newcomers(newcomers: Newcomers) -> Cohort:
    """Return newcomers as a cohort: one dict, a list of dicts, or frames by the name of their table.

    >>> ada = {"age": 71, "visits": [{"admission": "2024-05-03", "diagnoses": ["I50.9"]}]}
    >>> cohort = cohort_of_newcomers(ada)
    >>> cohort.visits.height, cohort.codes["diagnosis"]["code"].to_list()
    (1, ['108'])
    """
    if isinstance(newcomers, Mapping) and newcomers.get("resourceType") == "Bundle":
        return cohort_of_bundle(newcomers)
    if isinstance(newcomers, Mapping) and any(isinstance(each, _TABLES) for each in newcomers.values()):
        return _cohort_of_frames({str(name): frame for name, frame in newcomers.items()})
    people = [newcomers] if isinstance(newcomers, Mapping) else list(newcomers)
    if not people:
        raise PlmError("no newcomer is given", remedy="give a list with at least one patient")
    return _cohort_of_frames(frames_of_dicts(people))


def cohort_of_bundle(bundle: Mapping[str, Any] | Path) -> Cohort:
    """Return the patients of a FHIR R4 Bundle, a dict or a JSON file, as a cohort.

    The encounters that are visits are those of ``plm prepare fhir``: the same patient gives the same visits.
    """
    with tempfile.TemporaryDirectory(prefix="plm-newcomers-") as folder:
        path = Path(folder) / "fhir" / "bundle.json"
        path.parent.mkdir()
        try:
            text = bundle.read_text(encoding="utf-8") if isinstance(bundle, Path) else json.dumps(bundle)
        except (TypeError, ValueError):
            raise PlmError("the Bundle of newcomers is not JSON", remedy="give it as it was exported") from None
        path.write_text(text, encoding="utf-8")
        try:
            prepare("fhir", path.parent, Path(folder) / "cohort")
        except PlmError as error:
            problem = error.problem.replace(f"'{path}'", "the newcomers' Bundle").replace(f"'{path.parent}'", "it")
            raise type(error)(problem, remedy=_without_options(error.remedy)) from None
        return _said_and_loaded(Path(folder) / "cohort")


def frames_of_dicts(people: Sequence[Mapping[str, Any]]) -> dict[str, pl.DataFrame]:
    """Return the tables ``visits`` and ``events`` that some dicts stand for.

    >>> frames_of_dicts([{"id": "a", "visits": [{"medications": ["atc:C03CA01"]}]}])["events"].row(0)
    ('newcomer-1/visit-1', 'medication/atc', 'C03CA01')
    """
    visits, events = [], []
    names: set[str] = set()
    for number, person in enumerate(people, start=1):
        checked = _checked(person, number, len(people))
        name = _name_of(checked.id, number)
        if name in names:
            raise PlmError(f"newcomer {number} has the id of an earlier one", remedy="give each patient an id once")
        names.add(name)
        for place, visit in enumerate(_in_order(checked.visits, number), start=1):
            visit_id = visit.id or f"newcomer-{number}/visit-{place}"
            visits.append(_visit_row(checked, visit, name, visit_id, place))
            events += [(visit_id, *_kind_and_code(kind, code)) for kind in KINDS for code in visit.codes(kind)]
    schema = {"visit_id": pl.String, "kind": pl.String, "code": pl.String}
    return {
        "visits": pl.DataFrame(visits, infer_schema_length=None),
        "events": pl.DataFrame(events, schema=schema, orient="row"),
    }


def names_in_order(newcomers: Any) -> list[str] | None:
    """Return the ids of newcomers that come as dicts, in the order given; None for any other form.

    >>> names_in_order([{"id": "zoe", "visits": []}, {"visits": []}])
    ['zoe', 'newcomer-2']
    """
    people = [newcomers] if isinstance(newcomers, Mapping) else newcomers
    if not isinstance(people, Sequence) or not all(isinstance(each, Mapping) and "visits" in each for each in people):
        return None
    if any(isinstance(each["visits"], pl.DataFrame) for each in people):
        return None
    return [_name_of(each.get("id"), number) for number, each in enumerate(people, start=1)]


def _name_of(given: str | None, number: int) -> str:
    """Return the id of a newcomer in the normal form of ids, or a name by its place."""
    return str(normal_ids(pl.Series([given or f"newcomer-{number}"])).item())


def _in_order(visits: tuple[NewVisit, ...], number: int) -> list[NewVisit]:
    """Return the visits oldest first: by admission where all have one, else as given; no date may disagree."""
    times = [
        None if visit.admission is None else datetime.fromisoformat(_as_text(visit.admission) or "") for visit in visits
    ]
    known = [time for time in times if time is not None]
    if len(known) == len(times):
        return [visits[place] for place in sorted(range(len(visits)), key=lambda place: known[place])]
    if known != sorted(known):
        raise PlmError(
            f"newcomer {number}: visits without a date are taken in the order given, but the dates of the others are "
            "not in that order",
            remedy="give the visits oldest first, or all of their dates",
        )
    return list(visits)


def _visit_row(person: Newcomer, visit: NewVisit, subject: str, visit_id: str, place: int) -> dict[str, Any]:
    is_last = place == len(person.visits)
    return {
        "subject_id": subject,
        "visit_id": visit_id,
        "admission_time": _as_text(visit.admission),
        "discharge_time": _as_text(visit.discharge),
        "order": str(place),
        "sex": person.sex,
        "age": None if (age := visit.age if visit.age is not None or not is_last else person.age) is None else str(age),
        **{name: getattr(person, name) for name in DEMOGRAPHICS if hasattr(person, name)},
    }


def _as_text(time: datetime | date | None) -> str | None:
    if time is None:
        return None
    if isinstance(time, datetime) and time.tzinfo is not None:
        raise PlmError("a time of a newcomer has a time zone", remedy="give local times without a zone")
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _kind_and_code(kind: Kind, written: str) -> tuple[str, str]:
    """Split ``system:code``; an ICD code or a drug's name has no colon of its own."""
    system, colon, code = written.partition(":")
    return (f"{kind}/{system.strip().lower()}", code.strip()) if colon else (kind, written.strip())


def _checked(person: Mapping[str, Any], number: int, people: int) -> Newcomer:
    who = "the newcomer" if people == 1 else f"newcomer {number}"
    if not isinstance(person, Mapping):
        raise PlmError(f"{who} is a {type(person).__name__}, not a dict", remedy="see docs/own-tables.md, Newcomers")
    try:
        return Newcomer.model_validate(dict(person))
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = _place_in_words(problem["loc"])
        if problem["type"] == "extra_forbidden":
            model = NewVisit if "visits" in problem["loc"][:-1] else Newcomer
            raise PlmError(
                f"{who} has an unknown entry '{problem['loc'][-1]}'{place}",
                remedy=f"use {', '.join(model.model_fields)}",
            ) from None
        message = problem["msg"].removeprefix("Value error, ")
        words = f"{message[0].lower()}{message[1:]}"
        raise PlmError(f"{who}: {_WORDS.get(words, words)}{place}", remedy="correct the entry") from None


def _place_in_words(path: tuple[int | str, ...]) -> str:
    """Say where in a dict something is.

    >>> _place_in_words(("visits", 0, "age"))
    " (visit 1, 'age')"
    """
    named = [part for part in path if part not in ("datetime", "date") and (part != "visits" or len(path) == 1)]
    words = [f"visit {part + 1}" if isinstance(part, int) else f"'{part}'" for part in named[:2]]
    return f" ({', '.join(words)})" if words else ""


def _cohort_of_frames(frames: Mapping[str, pl.DataFrame]) -> Cohort:
    """Take frames through ``prepare`` in a private temporary folder that is removed at once."""
    if unknown := sorted(set(frames) - set(_FRAMES)):
        raise PlmError(f"there is no table '{unknown[0]}' for newcomers", remedy=f"give {', '.join(_FRAMES)}")
    if missing := [name for name in _FRAMES[:2] if name not in frames]:
        raise PlmError(f"the table '{missing[0]}' is missing", remedy="see docs/own-tables.md for its columns")
    for name, frame in frames.items():
        if not isinstance(frame, pl.DataFrame):
            raise PlmError(
                f"the table '{name}' of the newcomers is a {type(frame).__name__}, not a DataFrame",
                remedy="collect it first"
                if isinstance(frame, pl.LazyFrame)
                else "give all tables as polars DataFrames",
            )
    with tempfile.TemporaryDirectory(prefix="plm-newcomers-") as folder:
        for name, frame in frames.items():
            frame.write_parquet(Path(folder) / f"{name}.parquet")
        try:
            prepare("tables", Path(folder), Path(folder) / "cohort", reading={"without_events": True})
        except PlmError as error:
            raise PlmError(_without_paths(error.problem, folder), remedy=_without_options(error.remedy)) from None
        return _said_and_loaded(Path(folder) / "cohort")


def _without_options(remedy: str | None) -> str | None:
    """Leave out options of the command line, which nobody who gives a dict can set.

    >>> _without_options("correct them, or leave them out with --negative-stays drop"), _without_options("check it")
    ('correct them', 'check it')
    """
    if remedy is None or "--" not in remedy:
        return remedy
    kept = [part for part in remedy.split(", or ") if "--" not in part]
    return ", or ".join(kept) or "correct the entry"


def _said_and_loaded(folder: Path) -> Cohort:
    """Warn of what was left out or repaired, codes that no map knows first, and load the cohort."""
    cohort = Cohort.load(folder)
    unmapped = pl.read_parquet(folder / "unmapped.parquet").filter(pl.col("way") == UNMAPPED)
    unknown = unmapped["code"].unique(maintain_order=True).to_list()
    for sentence in (*note_on_unknown(unknown), *notes_on_newcomers(cohort.about)):
        warnings.warn(sentence, UserWarning, stacklevel=2)
    return replace(cohort, folder=None)


def notes_on_newcomers(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what was left out of the records of newcomers or repaired in them.

    >>> notes_on_newcomers({"notes": ["the optional table 'names' is not there"], "rows_without_visit": {"events": 2}})
    ('2 rows of the table events belong to no visit and are left out',)
    """
    said = [note for note in about["notes"] if not _OF_NO_CONCERN.search(note)]
    for name, rows in about["rows_without_visit"].items():
        if rows:
            verb = "belongs to no visit and is" if rows == 1 else "belong to no visit and are"
            said.append(f"{counted(rows, 'row')} of '{name}' {verb} left out")
    said = [re.sub(r"'(visits|events|names)(\.[a-z.]+)?'", r"the table \1", note) for note in said]
    return tuple(re.sub(r"row(s?) of 'bundle\.json'", r"resource\1 of the Bundle", note) for note in said)


def note_on_unknown(codes: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence that names the codes that no map knows; none where there are none.

    >>> note_on_unknown(["XYZ"]), note_on_unknown([])
    (("codes that no map knows are left out: 'XYZ'",), ())
    """
    if not codes:
        return ()
    shown = ", ".join(f"'{printable(code)}'" for code in codes[:5]) + (", ..." if len(codes) > 5 else "")
    return (f"{_UNKNOWN}: {shown}",)


def is_on_unknown(note: str) -> bool:
    """Tell whether a sentence is one of :func:`note_on_unknown`, which names codes.

    >>> is_on_unknown(*note_on_unknown(["XYZ"])), is_on_unknown("1 row of the events belongs to no visit")
    (True, False)
    """
    return note.startswith(_UNKNOWN)


def _without_paths(sentence: str, folder: str) -> str:
    """Speak of a table where a sentence names its temporary file.

    >>> _without_paths("'/tmp/x/visits.parquet', row 2: column 'age' is blank", "/tmp/x")
    "the newcomers' visits, row 2: column 'age' is blank"
    """
    for name in _FRAMES:
        path = f"'{Path(folder) / name}.parquet'"
        sentence = sentence.replace(f"the table {path}", path).replace(path, f"the newcomers' {name}")
    return sentence
