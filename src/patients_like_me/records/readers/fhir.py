"""Reader for FHIR R4: a bulk export (NDJSON, also gzipped) or JSON bundles.

Encounters become visits by their class or identifier, and the parts of an encounter (``partOf``) belong to the visit
above them. Code systems are told by their URIs; a dialect (``records/dialects/fhir.py``) adds those of one server.
Times are local: the clock time that is written, without its offset; offsets more than one hour apart (summer time) are
refused. See ``docs/fhir.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from pydantic import Field

from patients_like_me.codes.registry import Kind, SystemColumn
from patients_like_me.errors import NoVisitsError, PlmError
from patients_like_me.plain_text import counted
from patients_like_me.records.dialects.fhir import FhirDialect, find_fhir_dialect, suiting_dialect
from patients_like_me.records.dialects.loading import file_of_dialect
from patients_like_me.records.event_rows import Numbers
from patients_like_me.records.events import EventStream
from patients_like_me.records.fhir_elements import (
    Clock,
    best_coding,
    birthday,
    identified,
    race_of,
    referred_id,
    word_of,
)
from patients_like_me.records.fhir_files import fhir_files, looks_like_fhir
from patients_like_me.records.fhir_medications import medication_codes, tell_dangling, with_drugs
from patients_like_me.records.fhir_states import died, happened, is_unknown, mark, refuse_marked, unknown_state
from patients_like_me.records.ids import normal_ids, note_on_changed_ids, refuse_look_alikes, refuse_lost_ids
from patients_like_me.records.registry import Description, Reader, ReaderSettings, SourceRecords
from patients_like_me.records.source_files import SourceFolder, SourceTable, open_table
from patients_like_me.records.values import completed_years, in_the_days_of, plain_word, refuse_ages, refuse_rows

SNOMED: Final = "http://snomed.info/sct"
_ICD10CM: Final = "http://hl7.org/fhir/sid/icd-10-cm"
_KIND_OF: Final[dict[str, Kind]] = {
    "Condition": "diagnosis",
    "Procedure": "procedure",
    "MedicationRequest": "medication",
    "MedicationAdministration": "medication",
    "MedicationStatement": "medication",
}
#: The words of FHIR for the gender of a patient, and what becomes of them.
_GENDERS: Final = {"male": "M", "female": "F", "other": "other", "unknown": None}


class FhirSettings(ReaderSettings):
    """What the identifiers and code systems mean, and what counts as a visit."""

    dialect: str = Field(
        "", description="a shipped dialect (standard, mimic4) or a JSON file; blank: the one that suits"
    )
    classes: str = Field(
        "", description="classes of encounters that are visits, such as IMP+EMER; blank: the dialect's"
    )
    snomed: str = Field("", description="a table of two columns, SNOMED CT and ICD-10-CM, for conditions in SNOMED CT")


def read_fhir(source: SourceFolder, settings: FhirSettings) -> SourceRecords:
    """Read patients and encounters, and open the other resources, which are read later, piece by piece."""
    tables = _opened(source)
    encounters = tables["Encounter"].collect()
    patients = tables["Patient"].collect()
    dialect = _chosen(settings, encounters, source)
    clock = Clock.of(tables["Encounter"], encounters)
    people = _patients(patients, dialect, clock, tables["Patient"], source)
    visits, index, rows = _visits(encounters, people, dialect, clock, tables["Encounter"], source)
    streams, snomed = [], _snomed_table(settings.snomed, source)
    for resource, kind in _KIND_OF.items():
        if resource not in tables or (kind == "medication" and resource not in dialect.medications):
            if kind != "medication" or resource in dialect.medications:
                source.notes.append(f"the export has no {resource}")
            continue
        streams.append(_stream(resource, kind, tables, index, dialect, clock, snomed))
    if "Medication" not in tables and any(stream.kind == "medication" for stream in streams):
        source.notes.append("the export has no Medication: drugs that are only referred to stay unmapped")
    return SourceRecords(
        patients=people.select("subject_id", "sex", "death_time"),
        visits=visits,
        visits_table=tables["Encounter"],
        streams=streams,
        place_of_visit=lambda visit: tables["Encounter"].place_of_number(
            int(rows[visits["visit_id"].to_list().index(visit)])
        ),
        time_column_names=("start", "end"),
    )


def _opened(source: SourceFolder) -> dict[str, SourceTable]:
    tables = fhir_files(source).tables(source)
    for resource in ("Patient", "Encounter"):
        if resource not in tables:
            there = ", ".join(sorted(tables)) or "nothing that is read"
            raise PlmError(
                f"no {resource} resources in '{source.folders[0]}' (there: {there})",
                remedy="export Patient, Encounter, Condition, Procedure and MedicationRequest",
            )
    return tables


def _chosen(settings: FhirSettings, encounters: pl.DataFrame, source: SourceFolder) -> FhirDialect:
    if settings.dialect:
        dialect = find_fhir_dialect(settings.dialect)
        source.used.extend(file_of_dialect("fhir", settings.dialect))
    else:
        systems = encounters["identifier"].explode().struct.field("system").drop_nulls().unique()
        dialect = suiting_dialect(set(systems))
        source.notes.append(f"the dialect '{dialect.name}' was chosen")
    if settings.classes:
        classes = tuple(name.strip() for name in settings.classes.split("+"))
        dialect = dialect.model_copy(update={"visit_classes": classes, "visit_identifiers": ()})
    return dialect


def _patients(
    rows: pl.DataFrame, dialect: FhirDialect, clock: Clock, table: SourceTable, source: SourceFolder
) -> pl.DataFrame:
    other = pl.col("resourceType").ne_missing("Patient")
    refuse_rows(rows, other, table, "this is not a Patient, unlike the first row")
    refuse_rows(rows, pl.col("id").is_null(), table, "this Patient has no id")
    no_day = pl.col("birthDate").is_not_null() & birthday(pl.col("birthDate")).is_null()
    refuse_rows(rows, no_day, table, "birthDate must be a day like 1950-01-31, a month or a year")
    no_word = ~pl.col("gender").str.strip_chars().str.to_lowercase().is_in(_GENDERS).fill_null(True)
    refuse_rows(rows, no_word, table, f"gender must be one of {', '.join(_GENDERS)}")
    clock.refuse_others(rows, pl.col("deceasedDateTime"), table, "deceasedDateTime")
    again = pl.col("id").is_duplicated() & ~pl.col("id").is_first_distinct()
    refuse_rows(rows, again, table, "this Patient's id is in an earlier row too")
    undated = (pl.col("deceasedBoolean").fill_null(False) & pl.col("deceasedDateTime").is_null()).sum()
    if dead := int(rows.select(undated).item()):
        source.notes.append(
            f"{counted(dead, 'patient')} died at a time that is not given (deceasedBoolean): no visit is taken for the "
            "one they died in"
        )
    names = rows.select(identified(dialect.patient_identifier, pl.col("id")).alias("subject_id")).to_series()
    names = _in_one_form(names, "subject_id", dialect.patient_identifier, table, source)
    twice = pl.col("subject_id").is_duplicated() & ~pl.col("subject_id").is_first_distinct()
    refuse_rows(names.to_frame(), twice, table, "a Patient in an earlier row has the same identifier")
    return rows.with_columns(names).select(
        pl.col("id").alias("patient"),
        "subject_id",
        plain_word("gender").replace(_GENDERS).alias("sex"),
        birthday(pl.col("birthDate")).alias("born"),
        clock.time(pl.col("deceasedDateTime")).alias("death_time"),
        word_of(pl.col("maritalStatus")).alias("marital_status"),
        word_of(pl.col("communication").list.first().struct.field("language")).alias("language"),
        race_of(pl.col("extension")).alias("ethnicity"),
    )


def _in_one_form(ids: pl.Series, name: str, identifier: str, table: SourceTable, source: SourceFolder) -> pl.Series:
    """Bring identifiers, which a hospital writes as it likes, into one form; ids of resources stay as they are."""
    if not identifier:
        return ids
    normal = normal_ids(ids.alias("identifier"))
    refuse_lost_ids(normal, table)
    refuse_look_alikes(normal, table)
    source.notes += note_on_changed_ids(normal, ids)
    return normal.alias(name)


def _visits(
    rows: pl.DataFrame,
    people: pl.DataFrame,
    dialect: FhirDialect,
    clock: Clock,
    table: SourceTable,
    source: SourceFolder,
) -> tuple[pl.DataFrame, pl.DataFrame, Numbers]:
    """Return the visits, the visit's id of every encounter whose codes count, and the number of each visit's row."""
    other = pl.col("resourceType").ne_missing("Encounter")
    refuse_rows(rows, other, table, "this is not an Encounter, unlike the first row")
    refuse_rows(rows, pl.col("id").is_null(), table, "this Encounter has no id")
    refuse_rows(rows, is_unknown("Encounter"), table, unknown_state("Encounter"))
    for end in ("start", "end"):
        clock.refuse_others(rows, pl.col("period").struct.field(end), table, f"period.{end}")
    again = pl.col("id").is_duplicated() & ~pl.col("id").is_first_distinct()
    refuse_rows(rows, again, table, "this Encounter's id is in an earlier row too")
    flat = rows.select(
        "id",
        identified(dialect.visit_identifier, pl.col("id")).alias("visit_id"),
        referred_id(pl.col("subject")).alias("patient"),
        referred_id(pl.col("partOf")).alias("parent"),
        _is_visit(dialect).alias("qualifies"),
        clock.time(pl.col("period").struct.field("start")).alias("admission_time"),
        clock.time(pl.col("period").struct.field("end")).alias("discharge_time"),
        died(pl.col("hospitalization").struct.field("dischargeDisposition"), dialect.died).alias("died"),
    )
    flat = flat.with_columns(_in_one_form(flat["visit_id"], "visit_id", dialect.visit_identifier, table, source))
    strangers = ~pl.col("patient").is_in(people["patient"].implode())
    refuse_rows(flat, strangers.fill_null(True), table, "its subject is not a Patient of this export")
    top = _topmost_visits(flat, table)
    chosen = np.unique(top[top >= 0])
    if not len(chosen):
        raise NoVisitsError(
            f"no Encounter of '{table.path}' is a hospital visit for the dialect '{dialect.name}'",
            remedy="look at them with --describe, and give --set classes=IMP+EMER or another dialect (docs/fhir.md)",
        )
    if others := int((top < 0).sum()):
        source.notes.append(
            counted(
                others,
                "encounter is neither a visit nor a part of one",
                "encounters are neither visits nor parts of one",
            )
        )
    visits = flat[chosen].join(people.drop("sex"), on="patient", how="left", maintain_order="left")
    # An encounter that does not say where it led ends with a death that falls into its days.
    visits = visits.with_columns(pl.coalesce("died", in_the_days_of("death_time"))).drop("death_time")
    years = completed_years("born", "admission_time")
    if dialect.birth_year_only:
        years = pl.col("admission_time").dt.year() - pl.col("born").dt.year()
    age = years.clip(upper_bound=dialect.oldest_age) if dialect.oldest_age is not None else years
    refuse_ages(flat.join(people.select("patient", "born"), on="patient", how="left", maintain_order="left")
                .with_columns(pl.Series("is visit", np.isin(np.arange(flat.height), chosen))),
                pl.when("is visit").then(years), table, "the age at admission, from birthDate,")  # fmt: skip
    inside = np.arange(flat.height) if dialect.parts == "merge" else chosen
    inside = inside[top[inside] >= 0]
    index = flat[inside].select("id", "patient").with_columns(flat["visit_id"].gather(top[inside]))
    of_another = flat["patient"] != flat["patient"].gather(np.where(top >= 0, top, np.arange(flat.height)))
    refuse_rows(flat.with_columns(of_another.alias("bad")), pl.col("bad"), table,
                "through partOf, it is a part of a visit of another patient")  # fmt: skip
    visits = visits.with_columns(age.cast(pl.Int16).alias("age")).drop("id", "parent", "qualifies", "patient", "born")
    return visits, index, chosen


def _is_visit(dialect: FhirDialect) -> pl.Expr:
    took_place = happened("Encounter")
    if dialect.visit_identifiers:
        systems = pl.col("identifier").list.eval(pl.element().struct.field("system"))
        wanted = [systems.list.contains(uri) for uri in dialect.visit_identifiers]
        return took_place & pl.any_horizontal(wanted).fill_null(False)
    return took_place & pl.col("class").struct.field("code").is_in(dialect.visit_classes).fill_null(False)


def _topmost_visits(encounters: pl.DataFrame, table: SourceTable) -> Numbers:
    """Return for every encounter the row of the highest one above it (or itself) that is a visit; -1 where none is."""
    place = encounters.select("id").with_row_index("above")
    above = encounters.join(place, left_on="parent", right_on="id", how="left", maintain_order="left")["above"]
    dangling = encounters["parent"].is_not_null() & above.is_null()
    refuse_rows(
        encounters.with_columns(dangling.alias("bad")), pl.col("bad"), table, "its partOf is not in this export"
    )
    upward = np.array(above.cast(pl.Int64).fill_null(-1))
    top = np.where(encounters["qualifies"].to_numpy(), np.arange(len(upward)), -1)
    # The steps double with every round; who can go up by more steps than there are rows is led to or within a circle.
    for _ in range(len(upward).bit_length() + 1):
        rising = np.flatnonzero(upward >= 0)
        if not len(rising):
            return top
        reached = upward[rising]
        top[rising] = np.where(top[reached] >= 0, top[reached], top[rising])
        upward[rising] = upward[reached]
    cycle = pl.DataFrame({"bad": np.isin(np.arange(len(upward)), upward)})
    refuse_rows(cycle, pl.col("bad"), table, "through partOf, this Encounter is a part of itself")
    return top


def _stream(
    resource: str,
    kind: Kind,
    tables: dict[str, SourceTable],
    index: pl.DataFrame,
    dialect: FhirDialect,
    clock: Clock,
    snomed: pl.DataFrame | None,
) -> EventStream:
    """Open one type of event with the visit, the time and the code of each."""
    systems = dialect.systems_of_kind(kind)
    where = pl.col("context" if resource in ("MedicationAdministration", "MedicationStatement") else "encounter")
    start = {
        "Condition": pl.col("recordedDate"),
        "Procedure": pl.coalesce("performedDateTime", pl.col("performedPeriod").struct.field("start")),
        "MedicationAdministration": _effective(),
        "MedicationStatement": pl.coalesce("dateAsserted", _effective()),
        "MedicationRequest": pl.col("authoredOn"),
    }
    if dialect.request_time == "start":
        valid = pl.col("dispenseRequest").struct.field("validityPeriod").struct.field("start")
        start["MedicationRequest"] = pl.coalesce(valid, "authoredOn")
    table = tables[resource].then(lambda frame: frame.filter(happened(resource)))
    of_visit = index.lazy().rename({"id": "encounter id", "patient": "patient of visit"})
    places = [
        referred_id(where).alias("encounter id"),
        referred_id(pl.col("subject")).alias("patient"),
        clock.time(start[resource]).alias("time"),
    ]
    if kind == "medication":
        drugs = medication_codes(tables.get("Medication"), systems, dialect)
        named = table.then(lambda frame: with_drugs(frame, drugs, systems, places, mark(resource)))
        codes: dict[str, str | SystemColumn] = {"code": _systems(systems), "name": "name"}
    else:
        if resource == "Condition" and snomed is not None:
            systems = {**systems, SNOMED: "icd10"}
        coding = best_coding(pl.col("code"), systems)
        named = table.then(
            lambda frame: frame.select(
                *places,
                pl.coalesce(mark(resource), coding.struct.field("system")).alias("system"),
                coding.struct.field("code").alias("code"),
            )
        )
        if resource == "Condition" and snomed is not None:
            named = _through_snomed(named, snomed)
        codes = {"code": _systems(systems)}
    is_other = (pl.col("patient") != pl.col("patient of visit")).fill_null(False)
    joined = named.then(
        lambda frame: (
            frame.join(of_visit, on="encounter id", how="left", maintain_order="left")
            .with_columns(pl.when(is_other).then(pl.lit(-1, dtype=pl.Int64)).alias("subject_id"))
            .drop("encounter id", "patient", "patient of visit")
        )
    )
    remarks = tell_dangling(resource, tables[resource].path) if kind == "medication" else None
    stream = EventStream(kind, joined, codes, optional=True, remarks=remarks, dated=True)
    return replace(stream, looked_up=stream.keys, look_up=refuse_marked(resource, tables[resource]))


def _systems(systems: dict[str, str]) -> SystemColumn:
    return SystemColumn("system", systems, title="code system", refuse=False)


def _effective() -> pl.Expr:
    return pl.coalesce("effectiveDateTime", pl.col("effectivePeriod").struct.field("start"))


def _snomed_table(written: str, source: SourceFolder) -> pl.DataFrame | None:
    """Read the user's own table from SNOMED CT to ICD-10-CM; of several codes for a concept the first one is taken."""
    if not written:
        return None
    path = Path(written).expanduser()
    if not path.is_file():
        raise PlmError(f"there is no table of SNOMED CT at '{path}'", remedy="check --set snomed=FILE")
    source.used.append(path)
    given = (
        open_table(path, {"snomed": pl.String, "icd10": pl.String}).collect().drop_nulls().unique(maintain_order=True)
    )
    pairs = given.unique("snomed", keep="first", maintain_order=True)
    several = given.filter(pl.col("snomed").is_duplicated())["snomed"].n_unique()
    if several:
        one, many = "concept has", "concepts have"
        source.notes.append(f"{counted(several, one, many)} several codes in '{path.name}': the first one is taken")
    return pairs


def _through_snomed(table: SourceTable, pairs: pl.DataFrame) -> SourceTable:
    """Replace SNOMED CT by ICD-10-CM, by a table of the user's own; what it lacks stays and is counted as unmapped."""
    known = (pl.col("system") == SNOMED) & pl.col("icd10").is_not_null()
    return table.then(
        lambda frame: (
            frame.join(pairs.lazy(), left_on="code", right_on="snomed", how="left", maintain_order="left")
            .with_columns(
                pl.when(known).then(pl.lit(_ICD10CM)).otherwise("system").alias("system"),
                pl.when(known).then("icd10").otherwise("code").alias("code"),
            )
            .drop("icd10")
        )
    )


def describe_fhir(source: SourceFolder, settings: FhirSettings) -> Description:
    """Count the encounters by class and the codes by system, and say what becomes of each."""
    tables = _opened(source)
    encounters = tables["Encounter"].collect()
    dialect = _chosen(settings, encounters, source)
    classes = encounters.select(
        pl.format("class {}", pl.col("class").struct.field("code").fill_null("(none)")).alias("what"),
        pl.when(_is_visit(dialect)).then(pl.lit("visit")).otherwise(pl.lit("not a visit by itself")).alias("becomes"),
    )
    rows = [("Encounter", what, f"{count:,}", becomes) for what, becomes, count in _counted(classes)]
    for resource, kind in _KIND_OF.items():
        if resource not in tables:
            continue
        systems = dialect.systems_of_kind(kind)
        coding = best_coding(pl.col("code" if kind != "medication" else "medicationCodeableConcept"), systems)
        found = tables[resource].then(_only_systems(coding)).collect()
        read = kind != "medication" or resource in dialect.medications
        for uri, count in _counted(found):
            if uri is None:
                becomes = "by the Medication it refers to" if kind == "medication" else "not read: no coding"
            elif uri in systems:
                becomes = f"{kind} ({systems[uri]})"
            else:
                becomes = "not read: the dialect does not know this system"
            rows.append(
                (resource, uri or "(none)", f"{count:,}", becomes if read else "not read: left out by the dialect")
            )
    return Description(f"FHIR, dialect '{dialect.name}'", ("resource", "class or code system", "rows", "becomes"), rows)


def _only_systems(coding: pl.Expr) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
    return lambda frame: frame.select(coding.struct.field("system").alias("what"))


def _counted(rows: pl.DataFrame) -> list[tuple[Any, ...]]:
    return rows.group_by(rows.columns).len().sort("len", *rows.columns, descending=[True, *[False] * rows.width]).rows()


READER = Reader("fhir", "FHIR R4", looks_like_fhir, read_fhir, FhirSettings, any_hospital=True, describe=describe_fhir)
