"""One instance at a time: its prompt and its diagnoses without the frames that thousands of instances need.

A request for one patient would spend more time on joining and sorting frames of ten rows than on anything else. These
functions give what :func:`instances_to_predict`, :meth:`Instances.inputs`, :func:`parts_of_instances` and
:attr:`Instances.diagnosis_sets` give for a single instance, by plain loops; a test holds them against those on drawn
patients. What is rare (a source that cannot order its visits, words beyond ASCII) goes the general way.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import numpy as np
import polars as pl

from patients_like_me.records.cohort import DEMOGRAPHICS, KINDS, Cohort, Kind
from patients_like_me.tasks.diagnosis_sets import UNKNOWN, DiagnosisSets
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.prompts import PromptParts, VisitCodes, parts_of_instances
from patients_like_me.tasks.task import Task, TaskSettings

#: The codes that an instance may see, by kind: visit and code, in rising order.
Seen = dict[Kind, list[tuple[int, str]]]
_SEXES = {"f": 0, "female": 0, "m": 1, "male": 1}
_COLUMNS: Final = pl.Schema(
    {
        "instance": pl.UInt32(),
        "instance_id": pl.String(),
        "visit": pl.UInt32(),
        "first_visit": pl.UInt32(),
        "subject": pl.UInt32(),
        "split": pl.String(),
    }
)


def instance_to_predict(
    cohort: Cohort, task: Task, settings: TaskSettings, label_vocabulary: tuple[str, ...] = ()
) -> Instances:
    """Return the last visit of the one patient of a cohort as an instance without a label."""
    settings = task.settings(settings)
    task = task.under(settings)
    visits = cohort.visits
    last = visits["visit"].to_list()
    place = last.index(max(last))
    visit, visit_id, subject, position = (visits[name][place] for name in ("visit", "visit_id", "subject", "position"))
    return Instances(
        cohort=cohort,
        task=task,
        settings=settings,
        frame=pl.DataFrame([(0, visit_id, visit, visit - position, subject, "test")], schema=_COLUMNS, orient="row"),
        labels=task.kind.no_labels(1, len(label_vocabulary)),
        label_vocabulary=label_vocabulary,
    )


def history_of_one(instances: Instances) -> list[int]:
    """Return the earlier visits that the one instance may see, oldest first."""
    if instances.cohort.unordered:
        return [int(visit) for visit in instances.history["visit"].to_list()]
    _, _, visit, first, _, _ = _row(instances)
    earlier = range(first, visit)
    if instances.settings.inputs == "retrospective":
        return list(earlier)
    ends = instances.cohort.visits["discharge_time"]
    now = _prediction_time(instances)
    return [number for number in earlier if _is_known(ends[number], now)]


def seen_by_one(instances: Instances) -> Seen:
    """Return every code that the one instance may see."""
    if instances.cohort.unordered:
        return {
            kind: [(int(visit), code) for visit, code in instances.inputs(kind).select("visit", "code").iter_rows()]
            for kind in KINDS
        }
    earlier, current = set(history_of_one(instances)), _row(instances)[2]
    allowed = instances.task.inputs_of_current_visit(instances.settings)
    known_only = instances.settings.inputs == "known"
    now = _prediction_time(instances) if known_only else None
    # A diagnosis has no time of its own; see Instances.current_codes.
    undated = now is not None and instances.task.predicted_at != "admission"
    found: Seen = {}
    for kind in KINDS:
        rows = []
        for visit, code, time in instances.cohort.codes[kind].iter_rows():
            if visit in earlier:
                if not known_only or time is None or _is_known(time, now):
                    rows.append((visit, code))
            elif (visit == current and kind in allowed) and (
                not known_only or (time is None and undated) or _is_known(time, now)
            ):
                rows.append((visit, code))
        rows.sort()
        found[kind] = rows
    return found


def parts_of_one(instances: Instances, seen: Seen | None = None) -> PromptParts:
    """Return the parts of the prompt of the one instance."""
    brief = instances.settings.prompt == "brief"
    demographics = _demographics_of_one(instances) if brief else None
    if demographics is None:
        return parts_of_instances(instances)[0]
    seen = seen_by_one(instances) if seen is None else seen
    current = _row(instances)[2]
    by_visit: dict[tuple[Kind, int], list[str]] = {}
    for kind in KINDS:
        names = _names(instances, kind) if seen[kind] else {}
        for visit, code in seen[kind]:
            by_visit.setdefault((kind, visit), []).append(names.get(code, code))
    earlier: list[VisitCodes] = [
        {kind: by_visit.get((kind, visit), ()) for kind in KINDS} for visit in history_of_one(instances)
    ]
    allowed = instances.task.inputs_of_current_visit(instances.settings)
    return PromptParts(
        demographics=demographics,
        earlier=earlier,
        current={kind: by_visit.get((kind, current), ()) for kind in allowed},
        question=instances.task.question,
        answer=instances.task.answer,
        brief=True,
    )


def diagnosis_set_of_one(instances: Instances, seen: Seen | None = None) -> DiagnosisSets:
    """Return the diagnoses of the one instance."""
    seen = seen_by_one(instances) if seen is None else seen
    vocabulary = tuple(sorted({code for _, code in seen["diagnosis"]}))
    _, instance_id, visit, _, subject, split = _row(instances)
    sex = (instances.cohort.patients["sex"][subject] or "").strip().lower()
    age = instances.cohort.visits["age"][visit]
    return DiagnosisSets(
        indptr=np.array([0, len(vocabulary)], dtype=np.int64),
        codes=np.arange(len(vocabulary), dtype=np.int32),
        patients=np.array([subject], dtype=np.int32),
        instance_ids=(instance_id,),
        vocabulary=vocabulary,
        splits=np.array([split]),
        cohort_hash=instances.cohort.hash,
        sexes=np.array([_SEXES.get(sex, UNKNOWN)], dtype=np.int16),
        ages=np.array([UNKNOWN if age is None else age], dtype=np.int16),
    )


def _row(instances: Instances) -> tuple[int, str, int, int, int, str]:
    """Return instance, instance_id, visit, first_visit, subject and split of the one instance."""
    if len(instances) != 1:
        raise ValueError(f"{len(instances)} instances where one is expected")
    row = instances.frame.row(0, named=True)
    names = ("instance", "instance_id", "visit", "first_visit", "subject", "split")
    found: Any = tuple(row[name] for name in names)
    result: tuple[int, str, int, int, int, str] = found
    return result


def _prediction_time(instances: Instances) -> datetime | None:
    column = "admission_time" if instances.task.predicted_at == "admission" else "discharge_time"
    found: datetime | None = instances.cohort.visits[column][_row(instances)[2]]
    return found


def _is_known(time: datetime | None, now: datetime | None) -> bool:
    """Tell whether a time is before the prediction; without any dates, the order of the visits alone decides."""
    if time is None or now is None:
        return time is None and now is None
    return time <= now


def _names(instances: Instances, kind: Kind) -> dict[str, str]:
    return {
        code: name
        for of_kind, code, name in instances.cohort.vocabulary.select("kind", "code", "name").iter_rows()
        if of_kind == kind
    }


def _demographics_of_one(instances: Instances) -> str | None:
    """Write age, sex and the demographics that are recorded; None where a word is not ASCII."""
    _, _, visit, _, subject, _ = _row(instances)
    row = instances.cohort.visits.row(visit, named=True)
    values = {"age": row["age"], "sex": instances.cohort.patients["sex"][subject]}
    values |= {name: row[name] for name in DEMOGRAPHICS}
    words = [f"{name.replace('_', ' ')} {str(value).lower()}" for name, value in values.items() if value is not None]
    return f"{', '.join(words)}." if all(word.isascii() for word in words) else None
