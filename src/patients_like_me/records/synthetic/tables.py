"""The tables of the synthetic hospital in the shape of MIMIC-IV 2.2 ``hosp/``: same columns, order and text forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from patients_like_me.records.synthetic.contents import Contents
from patients_like_me.records.synthetic.courses import Courses
from patients_like_me.records.synthetic.people import (
    admission_kinds,
    discharge_locations,
    insurances,
    provider_names,
    social_columns,
)
from patients_like_me.records.synthetic.settings import Draws, SyntheticHospital
from patients_like_me.records.synthetic.syndromes import Integers, Items, Knowledge
from patients_like_me.records.synthetic.timeline import DAY, EPOCH, YEAR, YEAR_GROUPS, Timeline

COLUMNS = {
    "patients": ("subject_id", "gender", "anchor_age", "anchor_year", "anchor_year_group", "dod"),
    "admissions": (
        "subject_id",
        "hadm_id",
        "admittime",
        "dischtime",
        "deathtime",
        "admission_type",
        "admit_provider_id",
        "admission_location",
        "discharge_location",
        "insurance",
        "language",
        "marital_status",
        "race",
        "edregtime",
        "edouttime",
        "hospital_expire_flag",
    ),
    "diagnoses_icd": ("subject_id", "hadm_id", "seq_num", "icd_code", "icd_version"),
    "procedures_icd": ("subject_id", "hadm_id", "seq_num", "chartdate", "icd_code", "icd_version"),
    "prescriptions": (
        "subject_id",
        "hadm_id",
        "pharmacy_id",
        "poe_id",
        "poe_seq",
        "order_provider_id",
        "starttime",
        "stoptime",
        "drug_type",
        "drug",
        "formulary_drug_cd",
        "gsn",
        "ndc",
        "prod_strength",
        "form_rx",
        "dose_val_rx",
        "dose_unit_rx",
        "form_val_disp",
        "form_unit_disp",
        "doses_per_24_hrs",
        "route",
    ),
}

# Numbers are scattered over their eight-digit ranges by multiplication modulo a prime: no order shows. Subjects and
# admissions are unique; pharmacy numbers repeat only beyond 99 million rows.
SUBJECTS = (10_000_000, 9_999_991, 6_700_417)
ADMISSIONS = (20_000_000, 9_999_991, 4_256_233)
PHARMACY = (1_000_000, 98_999_969, 61_803_399)
# The mean stay over ordered drugs: with it, the rows per drug come out as asked for.
MEAN_STAY_DAYS = 6.1
# MIMIC writes 91 for everybody above 89.
OLD_AGE = 91
BASES = ("0.9% Sodium Chloride", "5% Dextrose")


@dataclass(frozen=True)
class Counters:
    """Carry the running numbers of visits and prescription rows from block to block."""

    visits: int = 0
    prescriptions: int = 0


def identifiers(numbers: Integers, scheme: tuple[int, int, int]) -> Integers:
    """Turn running numbers into unique eight-digit identifiers.

    >>> identifiers(np.array([0, 1, 2]), (10, 7, 3)).tolist()
    [10, 13, 16]
    """
    first, modulus, factor = scheme
    return first + numbers * factor % modulus


def block_tables(
    knowledge: Knowledge,
    settings: SyntheticHospital,
    draws: Draws,
    counters: Counters,
    courses: Courses,
    contents: Contents,
    timeline: Timeline,
) -> dict[str, pl.DataFrame]:
    """Lay out one block of patients as the five tables."""
    subject = identifiers(courses.first_patient + np.arange(courses.patients), SUBJECTS)
    visit_subject = subject[courses.patient]
    visit_id = identifiers(counters.visits + np.arange(courses.visits), ADMISSIONS)
    return {
        "patients": _patients(courses, timeline, subject),
        "admissions": _admissions(knowledge, settings, draws, courses, timeline, visit_subject, visit_id),
        "diagnoses_icd": _diagnoses(knowledge.conditions, contents, timeline, visit_subject, visit_id),
        "procedures_icd": _procedures(knowledge.procedures, draws, contents, timeline, visit_subject, visit_id),
        "prescriptions": _prescriptions(
            knowledge.drugs, settings, draws, counters, courses, contents, timeline, visit_subject, visit_id
        ),
    }


def _patients(courses: Courses, timeline: Timeline, subject: Integers) -> pl.DataFrame:
    return _table(
        "patients",
        subject_id=subject,
        gender=_texts(("M", "F"), courses.female.astype(np.int64)),
        anchor_age=np.where(courses.age >= 90, OLD_AGE, courses.age).astype(np.int64),
        anchor_year=timeline.anchor_year,
        anchor_year_group=_texts(YEAR_GROUPS, timeline.year_group),
        dod=_dates(timeline.death_day, known=timeline.death_day >= 0),
    )


def _admissions(
    knowledge: Knowledge,
    settings: SyntheticHospital,
    draws: Draws,
    courses: Courses,
    timeline: Timeline,
    visit_subject: Integers,
    visit_id: Integers,
) -> pl.DataFrame:
    since_first = timeline.admitted - timeline.admitted[courses.order == 0][courses.patient]
    age = courses.age[courses.patient] + since_first / YEAR
    kind, location, through_emergency = admission_kinds(knowledge, courses, draws)
    providers = provider_names(settings.seed)
    waited = (60 + 300 * draws.stream("emergency wait").random(courses.visits)).astype(np.int64)
    left = (20 + 200 * draws.stream("emergency left").random(courses.visits)).astype(np.int64)
    return _table(
        "admissions",
        subject_id=visit_subject,
        hadm_id=visit_id,
        admittime=_times(timeline.admitted),
        dischtime=_times(timeline.discharged),
        deathtime=_times(timeline.discharged, known=courses.died),
        admission_type=kind,
        admit_provider_id=providers.gather(draws.stream("admitting").integers(0, len(providers), courses.visits)),
        admission_location=location,
        discharge_location=discharge_locations(courses, timeline.stay_days, age, draws),
        insurance=insurances(age, draws),
        **{name: column.gather(courses.patient) for name, column in social_columns(courses, draws).items()},
        edregtime=_times(timeline.admitted - waited, known=through_emergency),
        edouttime=_times(timeline.admitted + left, known=through_emergency),
        hospital_expire_flag=courses.died.astype(np.int64),
    )


def _diagnoses(
    items: Items, contents: Contents, timeline: Timeline, visit_subject: Integers, visit_id: Integers
) -> pl.DataFrame:
    """Write ICD-10-CM codes, ICD-9-CM ones before the change; what ICD-9 does not have, or has already, is left out."""
    entries = contents.diagnoses
    old = timeline.icd9[entries.visit]
    code = pl.select(
        pl.when(pl.Series(old))
        .then(_texts([texts[1] for texts in items.texts], entries.text))
        .otherwise(_texts([texts[0] for texts in items.texts], entries.text))
        .alias("code")
    )["code"]
    frame = (
        pl.DataFrame({"visit": entries.visit, "icd_code": code, "icd_version": np.where(old, 9, 10)})
        .filter(pl.col("icd_code") != "")
        .unique(["visit", "icd_code"], keep="first", maintain_order=True)
    )
    visit = frame["visit"].to_numpy()
    return _table(
        "diagnoses_icd",
        subject_id=visit_subject[visit],
        hadm_id=visit_id[visit],
        seq_num=_rank_within(visit),
        icd_code=frame["icd_code"],
        icd_version=frame["icd_version"],
    )


def _procedures(
    items: Items,
    draws: Draws,
    contents: Contents,
    timeline: Timeline,
    visit_subject: Integers,
    visit_id: Integers,
) -> pl.DataFrame:
    entries = contents.procedures
    when = draws.stream("procedure day").random(len(entries.visit)) ** 2
    first_day, last_day = timeline.admitted[entries.visit] // DAY, timeline.discharged[entries.visit] // DAY
    day = first_day + np.floor(when * (last_day - first_day + 1)).astype(np.int64)
    return _table(
        "procedures_icd",
        subject_id=visit_subject[entries.visit],
        hadm_id=visit_id[entries.visit],
        seq_num=_rank_within(entries.visit),
        chartdate=_dates(day),
        icd_code=_texts([texts[0] for texts in items.texts], entries.text),
        icd_version=np.full(len(entries.visit), 10),
    )


def _prescriptions(
    items: Items,
    settings: SyntheticHospital,
    draws: Draws,
    counters: Counters,
    courses: Courses,
    contents: Contents,
    timeline: Timeline,
    visit_subject: Integers,
    visit_id: Integers,
) -> pl.DataFrame:
    """Write one row per order: each drug at least once, long stays more often."""
    entries = contents.drugs
    further = settings.prescription_rows_per_drug - 1.0
    relative_stay = np.minimum(timeline.stay_days / MEAN_STAY_DAYS, 4.0)
    repeats = 1 + draws.stream("orders").poisson(further * relative_stay[entries.visit])
    visit, text = np.repeat(entries.visit, repeats), np.repeat(entries.text, repeats)
    rows = len(visit)
    is_first = _rank_within(np.repeat(np.arange(len(repeats)), repeats)) == 1
    start, stop = _order_times(draws, timeline, visit, is_first=is_first)
    order_number = 20 + 3 * _rank_within(courses.patient[visit])
    columns = list(zip(*items.texts, strict=True))
    drug, dose, unit, form, per_day, route = (_texts(column, text) for column in columns)
    subject = visit_subject[visit]
    providers = provider_names(settings.seed)
    return _table(
        "prescriptions",
        subject_id=subject,
        hadm_id=visit_id[visit],
        pharmacy_id=identifiers(counters.prescriptions + np.arange(rows), PHARMACY),
        poe_id=pl.select(pl.format("{}-{}", pl.Series(subject), pl.Series(order_number)).alias("poe"))["poe"],
        poe_seq=order_number,
        order_provider_id=providers.gather(draws.stream("ordering").integers(0, len(providers), rows)),
        starttime=_times(start),
        stoptime=_times(stop),
        drug_type=_texts(["BASE" if name in BASES else "MAIN" for name in columns[0]], text),
        drug=drug,
        formulary_drug_cd=_texts([formulary_code(*texts[:2]) for texts in items.texts], text),
        prod_strength=_texts([f"{texts[1]} {texts[2]} {texts[3].title()}" for texts in items.texts], text),
        dose_val_rx=dose,
        dose_unit_rx=unit,
        form_val_disp=np.ones(rows, dtype=np.int64),
        form_unit_disp=form,
        doses_per_24_hrs=per_day,
        route=route,
    )


def formulary_code(drug: str, dose: str) -> str:
    """Make the short code of the pharmacy from a drug's letters and dose.

    >>> formulary_code("Furosemide", "40")
    'FURO40'
    """
    letters = "".join(sign for sign in drug.upper() if sign.isalpha())
    return letters[:4] + dose.replace(".", "")


def _order_times(
    draws: Draws, timeline: Timeline, visit: Integers, *, is_first: NDArray[np.bool_]
) -> tuple[Integers, Integers]:
    """Start first orders near admission and repeats later; every order stops after it starts."""
    begin, end = timeline.admitted[visit], timeline.discharged[visit]
    when = draws.stream("order start").random(len(visit), dtype=np.float32).astype(float)
    share = np.where(is_first, when**3, when)
    start = (begin + share * np.maximum(end - begin - 60, 0)).astype(np.int64) // 60 * 60
    start = np.where(start < begin, start + 60, start)
    lasting = draws.stream("order length").random(len(visit), dtype=np.float32) * (end - start)
    stop = (start + lasting).astype(np.int64) // 60 * 60
    return start, np.maximum(stop, start + 60)


def _table(name: str, **columns: Any) -> pl.DataFrame:
    """Build a table with MIMIC's columns in MIMIC's order; a column that is not given stays blank."""
    height = len(columns["subject_id"])
    blank = pl.Series([None], dtype=pl.String).new_from_index(0, height)
    return pl.DataFrame({column: columns.get(column, blank) for column in COLUMNS[name]})


def _texts(texts: tuple[str, ...] | list[str], positions: Integers) -> pl.Series:
    return pl.Series(list(texts), dtype=pl.String).gather(positions)


def _times(minutes: Integers, known: NDArray[np.bool_] | None = None) -> pl.Series:
    moments = np.datetime64(EPOCH, "ms") + (minutes * 60_000).astype("timedelta64[ms]")
    return _where_known(pl.Series(moments), known)


def _dates(days: Integers, known: NDArray[np.bool_] | None = None) -> pl.Series:
    return _where_known(pl.Series(np.datetime64(EPOCH, "D") + days.astype("timedelta64[D]")), known)


def _where_known(series: pl.Series, known: NDArray[np.bool_] | None) -> pl.Series:
    return series if known is None else series.set(pl.Series(~known), None)


def _rank_within(groups: Integers) -> Integers:
    """Number the rows of each run of equal values from 1."""
    if len(groups) == 0:
        return np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    lengths = np.diff(np.append(starts, len(groups)))
    return np.arange(1, len(groups) + 1) - np.repeat(starts, lengths)
