"""The leakage audit: checks on the actual data that nothing of the answer reaches an input.

Every check looks at what models really get (:meth:`Instances.inputs`, the prompts' own text, the splits and labels)
and compares it with the cohort's tables in a second way, not by the code that built it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final, get_args

import numpy as np
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import shown_count
from patients_like_me.records.cohort import KINDS, Cohort
from patients_like_me.tasks.audit_features import (
    drugs_under_another_name,
    label_text_in_a_field,
    one_feature_alone,
    stay_in_a_number,
)
from patients_like_me.tasks.audit_findings import Finding, Verdict, finding
from patients_like_me.tasks.audit_provenance import counts_as_noted
from patients_like_me.tasks.audit_records import (
    SHORTEST_HISTORY,
    USUALLY_ALIKE,
    above_the_usual,
    codes_after_discharge,
    codes_in_their_visit,
    died_and_came_back,
    near_duplicate_patients,
    next_admission_recomputed,
    next_admissions,
    next_visits_codes,
    similar_ids_across_splits,
    undated_codes,
    visits_left_out,
    visits_numbered_in_order,
)
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.kinds import Labels
from patients_like_me.tasks.labels import given_values
from patients_like_me.tasks.prompts import parts_of_instances
from patients_like_me.tasks.task import SPLITS, Task, TaskSettings

_PROMPTS_READ = 2_000
#: What no check can know, said in every audit.
LIMITS: Final = (
    "No audit can know whether a code that looks right was entered with knowledge of the outcome, whether the times of "
    "all tables were shifted alike, whether a frequent code is a weak leak or a true sign, or what several features "
    "tell only together."
)


@dataclass
class Audit:
    """All findings about one task of one cohort, with the label rates."""

    task: str
    title: str
    settings: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    label_rates: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=lambda: [LIMITS])

    @property
    def leaks(self) -> list[Finding]:
        """The findings that must stop a training."""
        return [finding for finding in self.findings if finding.verdict == "leak"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that someone has to judge."""
        return [finding for finding in self.findings if finding.verdict == "warning"]

    @property
    def made(self) -> list[Finding]:
        """The checks that had something to look at."""
        return [finding for finding in self.findings if finding.verdict in ("passed", "warning", "leak")]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all checks."""
        return "leak" if self.leaks else "warning" if self.warnings else "passed"

    @property
    def sum(self) -> str:
        """What the checks say together, for every page that speaks of the audit."""
        made = len(self.made)
        if self.leaks:
            return f"{len(self.leaks)} of {made} checks of the leakage audit found a leak"
        if self.warnings:
            warn = "warns" if len(self.warnings) == 1 else "warn"
            return f"No leak is certain, but {len(self.warnings)} of {made} checks of the leakage audit {warn}"
        return f"No leak found in {made} checks of the leakage audit"

    def as_json(self) -> dict[str, Any]:
        """Return the audit as plain data."""
        return {**asdict(self), "leaks": len(self.leaks)}


def audit(cohort: Cohort, task: Task, settings: TaskSettings | None = None) -> Audit:
    """Build a task's instances and audit them; where the visits themselves are out of order, that is all it says."""
    numbered = visits_numbered_in_order(cohort)
    if numbered.verdict == "leak":
        chosen = task.settings(settings)
        return Audit(task.name, task.under(chosen).title, chosen.model_dump(mode="json"), [numbered])
    return audit_instances(build_instances(cohort, task, settings))


def audit_instances(instances: Instances) -> Audit:
    """Run every check on the instances as they are."""
    result = Audit(instances.task.name, instances.task.title, instances.settings.model_dump(mode="json"))
    result.findings.append(visits_numbered_in_order(instances.cohort))
    if result.leaks:
        # Every other check finds a patient's history by these numbers.
        return result
    for check in _CHECKS:
        result.findings.append(check(instances))
    result.findings += one_feature_alone(instances)
    result.label_rates = label_rates(instances)
    result.notes = [*_notes(instances), *result.notes]
    return result


def label_rates(instances: Instances) -> list[dict[str, Any]]:
    """Return instances, patients and label rates per split, under every choice of the setting the task compares."""
    task, by = instances.task, instances.task.rates_by
    variants = {getattr(instances.settings, by): instances} if by else {"": instances}
    for choice in get_args(task.settings_class.model_fields[by].annotation) if by else ():
        changed = instances.settings.model_copy(update={by: choice})
        # Without any discharge time the other clock has no instances, which is no reason to stop the audit.
        with suppress(PlmError):
            variants.setdefault(choice, build_instances(instances.cohort, task, changed))
    rows = []
    for choice, variant in sorted(variants.items()):
        for split in SPLITS:
            chosen = variant.rows_of(split)
            row: dict[str, Any] = {by: choice} if by else {}
            people = variant.frame[chosen.tolist()]["subject"]
            row |= {
                "split": split,
                "instances": len(chosen),
                "patients": people.n_unique(),
                "label rate": task.kind.rate(variant.labels[chosen], len(variant.task.classes)),
            }
            row["shown"] = task.kind.rate_in_words(row["label rate"])
            # What a page must know to hide small groups: instances and patients of each class.
            row["of each class"] = [] if task.kind.is_set else _of_each_class(variant, variant.labels[chosen], people)
            rows.append(row)
    return rows


def _of_each_class(instances: Instances, labels: Labels, people: pl.Series) -> list[list[int]]:
    return [
        [int((labels == number).sum()), people.filter(pl.Series(labels == number)).n_unique()]
        for number in range(len(instances.label_vocabulary))
    ]


def _one_split_per_patient(instances: Instances) -> Finding:
    by_id = instances.frame.join(instances.cohort.patients.select("subject", "subject_id"), on="subject")
    counts = by_id.group_by("subject_id").agg(pl.col("split").n_unique())
    return finding(
        "one split per patient",
        counts.height,
        counts.filter(pl.col("split") != 1).height,
        "patients with instances in two splits",
    )


def _no_target_in_the_input(instances: Instances) -> Finding:
    name, meaning = "no target code in the input", "codes of the current visit's answer among its inputs"
    answers = instances.task.labeller(instances.cohort, instances.settings)
    if instances.task.kind.is_set:
        answers = answers.explode("label")
    elif answers.schema["label"] != pl.String:
        return Finding(name, "not applicable", 0, 0, "the answer is not a code or a set of codes")
    seen = pl.concat([instances.inputs(kind) for kind in KINDS])
    current = seen.join(instances.frame.select("instance", pl.col("visit").alias("now")), on="instance")
    current = current.filter(pl.col("visit") == pl.col("now"))
    hits = current.join(answers, left_on=["visit", "code"], right_on=["visit", "label"], how="semi")
    because = "no code of the current visit is an input"
    return finding(name, current.height, hits.height, meaning, because=because)


def _no_target_in_the_prompt(instances: Instances) -> Finding:
    """Read the current visit from written prompts, as a model would."""
    name = "no forbidden list in the prompt"
    forbidden = [kind for kind in KINDS if kind not in instances.task.inputs_of_current_visit(instances.settings)]
    if not forbidden:
        return Finding(name, "not applicable", 0, 0, "all lists of the current visit are allowed")
    rows = np.linspace(0, len(instances) - 1, min(len(instances), _PROMPTS_READ)).astype(int).tolist()
    titles = {"diagnosis": "diagnoses:", "procedure": "procedures:", "medication": "medications:"}
    found = 0
    for part in parts_of_instances(instances, rows):
        current = part.write().split("Current visit:", 1)[1].split("\nTask:", 1)[0]
        found += any(titles[kind] in current for kind in forbidden)
    return finding(name, len(rows), found, f"prompts whose current visit shows {' or '.join(forbidden)} codes")


def _no_later_visit(instances: Instances) -> Finding:
    """Compare every visit that an input comes from with the patient and the time of its instance."""
    seen = pl.concat([instances.inputs(kind).select("instance", "visit") for kind in KINDS]).unique()
    visits = instances.cohort.visits.select("visit", "subject", "admission_time", "position", "sequence")
    now = instances.frame.select("instance", pl.col("visit").alias("current")).join(
        visits.rename(
            {"visit": "current", "subject": "patient", "admission_time": "now", "position": "place", "sequence": "rank"}
        ),
        on="current",
    )
    held = seen.join(visits, on="visit").join(now, on="instance")
    wrong = held.filter(
        (pl.col("subject") != pl.col("patient"))
        | (pl.col("position") > pl.col("place"))
        # Visits of one sequence are of unknown order: each of them may be the later one.
        | ((pl.col("sequence") >= pl.col("rank")) & (pl.col("visit") != pl.col("current")))
        | (pl.col("admission_time") > pl.col("now")).fill_null(False)
    )
    return finding(
        "no visit after the prediction",
        held.height,
        wrong.height,
        "inputs from a later visit or another patient",
        because="no instance has codes",
    )


def _only_what_was_known(instances: Instances) -> Finding:
    name = "only what was known at prediction time"
    if instances.settings.inputs != "known":
        return Finding(name, "not applicable", 0, 0, "retrospective inputs: codes of the current visit as in the paper")
    times = instances.prediction_times.select("instance", "prediction_time", pl.col("visit").alias("now"))
    ends = instances.cohort.visits.select("visit", "discharge_time")
    looked_at = found = 0
    for kind in KINDS:
        seen = instances.inputs(kind).join(instances.cohort.codes[kind], on=["visit", "code"], how="left")
        seen = seen.join(times, on="instance").join(ends, on="visit")
        current, dated = pl.col("visit") == pl.col("now"), pl.col("prediction_time").is_not_null()
        late = (pl.col("time") > pl.col("prediction_time")).fill_null(False)
        going_on = ~current & dated & ~(pl.col("discharge_time") <= pl.col("prediction_time")).fill_null(False)
        forbidden = current & pl.lit(kind not in instances.task.known_inputs)
        looked_at += seen.height
        found += seen.filter(late | going_on | forbidden).height
    return finding(
        name, looked_at, found, "inputs that did not exist yet at the prediction", because="no instance has codes"
    )


def _visits_in_time_order(instances: Instances) -> Finding:
    visits = instances.cohort.visits.sort("subject", "position")
    if visits["admission_time"].is_null().all():
        return Finding("visits in time order", "not applicable", 0, 0, "the visits have no dates, only an order")
    back = visits.with_columns(pl.col("admission_time").shift(1).over("subject").alias("before"))
    wrong = back.filter((pl.col("admission_time") < pl.col("before")).fill_null(False))
    return finding("visits in time order", visits.height, wrong.height, "visits admitted before the one they follow")


def _no_visit_after_death(instances: Instances) -> Finding:
    visits = instances.cohort.visits.join(instances.cohort.patients, on="subject")
    dead = visits.filter(pl.col("death_time").is_not_null() & pl.col("admission_time").is_not_null())
    late = dead.filter(pl.col("admission_time").dt.date() > pl.col("death_time").dt.date())
    meaning = "visits admitted after the patient's death"
    because = "no patient with a dated visit has a time of death"
    return finding("no visit after death", dead.height, late.height, meaning, because=because)


def _labels_hold(instances: Instances) -> Finding:
    """Recompute the labels of dated visits one by one, in plain Python."""
    name, task = "labels recomputed", instances.task
    if task.recomputed is None:
        return Finding(name, "not applicable", 0, 0, "the label is read, not computed from times")
    given = set(given_values(instances.cohort, task.name)["visit"].to_list())
    visits = instances.cohort.visits.sort("visit").select(
        "admission_time", "discharge_time", "next_admission_time", "died"
    )
    rows = visits.to_dicts()
    if not visits_left_out(instances.cohort) and not instances.cohort.unordered:
        # Nothing was left out: the next admission is that of the patient's next visit.
        for visit, following in next_admissions(instances.cohort).iter_rows():
            rows[visit]["next_admission_time"] = following
    looked_at = found = 0
    for visit, label in zip(instances.frame["visit"].to_list(), instances.labels.tolist(), strict=True):
        if visit not in given:
            looked_at += 1
            try:
                found += task.recomputed(rows[visit], instances.settings) != label
            except TypeError:
                # A time that the label needs is missing.
                found += 1
    meaning = "labels that differ from a plain recomputation"
    return finding(name, looked_at, found, meaning, because="all labels are given by the source")


def _vocabulary_from_training(instances: Instances) -> Finding:
    name = "vocabulary from training patients"
    if not instances.task.kind.is_set:
        return Finding(name, "not applicable", 0, 0, "the classes are fixed")
    train = instances.labels[instances.rows_of("train")]
    unseen = int((train.sum(axis=0) == 0).sum())
    return finding(
        name, len(instances.label_vocabulary), unseen, "codes of the vocabulary that no training patient has"
    )


def _impossible_times(instances: Instances) -> Finding:
    visits = instances.cohort.visits.sort("visit").with_columns(
        pl.col("admission_time").shift(-1).over("subject").alias("next")
    )
    odd = visits.filter(
        (
            (pl.col("discharge_time") < pl.col("admission_time"))
            | ((pl.col("next") < pl.col("discharge_time")) & pl.lit(not instances.cohort.unordered))
            | (pl.col("discharge_time") - pl.col("admission_time") > pl.duration(days=366))
        ).fill_null(False)
    )
    timed = visits.filter(pl.col("admission_time").is_not_null() & pl.col("discharge_time").is_not_null())
    return finding(
        "impossible times",
        timed.height,
        odd.height,
        "visits that end before they begin, overlap the next one, or last over a year",
        bad="warning",
        because="the records have no dates of admission and discharge",
    )


def _duplicate_visits(instances: Instances) -> Finding:
    if instances.cohort.unordered:
        return Finding("duplicate visits", "not applicable", 0, 0, instances.cohort.unordered)
    dated = instances.cohort.visits.filter(pl.col("admission_time").is_not_null())
    twice = dated.filter(pl.struct("subject", "admission_time").is_duplicated())
    return finding(
        "duplicate visits",
        dated.height,
        twice.height,
        "visits of one patient with the same admission time",
        bad="warning",
        because="no visit has an admission time",
    )


def _duplicate_inputs_across_splits(instances: Instances) -> Finding:
    """Compare whole inputs: equal ones in two splits can reward memorisation; short ones are equal by chance."""
    seen = pl.concat([instances.inputs(kind).with_columns(pl.lit(kind).alias("kind")) for kind in KINDS])
    first = instances.frame.select("instance", "first_visit", "split")
    hashes = (
        seen.join(first, on="instance")
        .select(
            "instance",
            "split",
            pl.struct(pl.col("visit") - pl.col("first_visit"), "kind", "code").hash(seed=0).alias("item"),
        )
        .group_by("instance", "split")
        .agg(pl.col("item").sort().hash(seed=0).bitwise_xor().alias("input"), pl.len())
        .filter(pl.col("len") >= SHORTEST_HISTORY)
    )
    across = hashes.group_by("input", "len").agg(pl.col("split").n_unique(), pl.len().alias("instances"))
    doubled = int(across.filter(pl.col("split") > 1)["instances"].sum())
    meaning = f"instances with {SHORTEST_HISTORY} codes or more whose codes equal one of another split"
    doubled, meaning = above_the_usual(doubled, hashes.height, meaning, usual=USUALLY_ALIKE)
    because = f"no instance has {SHORTEST_HISTORY} codes or more"
    return finding("equal inputs in two splits", hashes.height, doubled, meaning, bad="warning", because=because)


_CHECKS: tuple[Callable[[Instances], Finding], ...] = (
    _one_split_per_patient,
    _no_target_in_the_input,
    _no_target_in_the_prompt,
    _no_later_visit,
    _only_what_was_known,
    _visits_in_time_order,
    _no_visit_after_death,
    _labels_hold,
    _vocabulary_from_training,
    _impossible_times,
    _duplicate_visits,
    _duplicate_inputs_across_splits,
    counts_as_noted,
    next_admission_recomputed,
    died_and_came_back,
    codes_in_their_visit,
    codes_after_discharge,
    undated_codes,
    next_visits_codes,
    near_duplicate_patients,
    similar_ids_across_splits,
    label_text_in_a_field,
    drugs_under_another_name,
    stay_in_a_number,
)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _notes(instances: Instances) -> list[str]:
    notes = []
    allowed = instances.task.inputs_of_current_visit(instances.settings)
    if instances.settings.inputs == "retrospective" and instances.task.predicted_at == "admission":
        notes.append(
            f"Retrospective: the current visit's {_listed(allowed)} codes are inputs although they are assigned "
            "after discharge. Use inputs 'known' for what a clinician would have had."
        )
    if given_values(instances.cohort, instances.task.name).is_empty():
        notes += instances.task.words.cautions
    if instances.labels_outside_vocabulary:
        notes.append(
            f"{shown_count(instances.labels_outside_vocabulary)} labels outside training have a code that no training "
            "patient has."
        )
    if earlier := len(instances) - instances.frame["subject"].n_unique():
        notes.append(
            f"{shown_count(earlier)} instances have a later one of the same patient, whose text holds their answer. "
            "Whether a path of a patient graph leads from the one to the other is checked on the graph of a run, in "
            "its report and by plm audit --run."
        )
    return notes
