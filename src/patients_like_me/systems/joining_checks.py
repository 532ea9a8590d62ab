"""Who may join the bank of a run: labelled instances that it does not know, of patients on whom it is not scored."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import KINDS, Cohort
from patients_like_me.records.ids import look_alike_key
from patients_like_me.runs.predictions import ids_of
from patients_like_me.runs.run import Run
from patients_like_me.settings import differences_between
from patients_like_me.tasks.instances import Instances, Rows, build_instances
from patients_like_me.tasks.joining import only

#: With a smaller share of known codes a cohort is in other codes than the run, and is refused.
FEWEST_KNOWN = 0.2
#: With a smaller share it is said.
MANY_KNOWN = 0.9


def joining_instances(run: Run, cohort: Cohort) -> tuple[Instances, list[str]]:
    """Return the instances of a cohort that may join the bank of a run, and in words what should be known about them.

    Labels are those of the run's own task settings. Refused are a cohort that is in the bank already, one without
    labels, one in other codes, and one of which nothing may join.
    """
    added_before = () if run.bank_version is None else run.bank_version.record.additions
    if any(each.cohort == cohort.hash for each in added_before):
        raise PlmError("this cohort has been added to the bank of the run before", remedy="give newer records")
    found = build_instances(cohort, run.instances.task, run.task_settings, label_vocabulary=run.label_vocabulary)
    notes = []
    if found.labels_outside_vocabulary:
        notes.append(f"{found.labels_outside_vocabulary:,} labels that the run does not know are left out")
    settled, unsettled = settled_instances(found)
    if unsettled:
        notes.append(unsettled)
    usable, left_out = new_references(only(found, settled), run.everyone)
    notes += left_out
    if not len(usable):
        reason = "its outcomes are not settled yet" if not len(settled) else "the run knows all its instances"
        raise PlmError(f"nothing of this cohort can be added: {reason}", remedy="give newer records")
    added = only(found, settled[usable])
    notes += [*_on_codes(run, added), *_on_people(run, added), *_on_preparation(run, cohort)]
    return added, notes


def new_references(added: Instances, known: Instances) -> tuple[Rows, list[str]]:
    """Return the rows that may join the bank, and in words what may not; ``known`` has all instances of the run.

    Instances of the bank are in it already. Validation and test patients stay out: the scores of the run are theirs,
    and the outcomes of some would help to predict the others. A visit whose id belongs to another patient of the run
    stays out: the ids of two sources overlap. So does a patient whose id looks like one of the run: it may be one
    person, who would be a reference of oneself, or whose outcome is scored.
    """
    ids, people = ids_of(added), ids_of(known)
    owner = people.select("instance_id", pl.col("subject_id").alias("owner")).unique("instance_id")
    owners = ids.join(owner, on="instance_id", how="left", maintain_order="left")["owner"]
    evaluated = people.filter(~pl.Series(known.splits == "train"))["subject_id"].unique()
    of_evaluated = ids["subject_id"].is_in(evaluated.implode()).to_numpy()
    of_others = (owners != ids["subject_id"]).fill_null(False).to_numpy() & ~of_evaluated
    there = owners.is_not_null().to_numpy() & ~of_evaluated & ~of_others
    known_ids = set(people["subject_id"].to_list())
    known_keys = {look_alike_key(name) for name in known_ids}
    alike = np.array(
        [name not in known_ids and look_alike_key(name) in known_keys for name in ids["subject_id"].to_list()],
        dtype=bool,
    )
    alike &= ~(there | of_others)
    counts = {
        "are in the bank already": int(there.sum()),
        "are left out because they are of validation or test patients": int(of_evaluated.sum()),
        "are left out because others of the run have their visit ids: the ids of two sources overlap": int(
            of_others.sum()
        ),
        "are left out because the ids of their patients differ from ids of the run only in upper and lower case, "
        "leading zeros or '.0': write the id of one patient in one way": int(alike.sum()),
    }
    return np.flatnonzero(~(there | of_evaluated | of_others | alike)), [
        f"{number:,} {words}" for words, number in counts.items() if number
    ]


def settled_instances(instances: Instances) -> tuple[Rows, str]:
    """Return the instances whose outcome can be known, and in words how many are left out.

    Where a task asks what happens within some days, visits of the last days of the records have not had them: "not
    readmitted" would be said of patients who may still come back. Both outcomes are left out there, or the rest would
    be too ill.
    """
    everyone = np.arange(len(instances))
    window = getattr(instances.settings, "window_days", None)
    visits = instances.cohort.visits
    latest: list[Any] = [visits[name].max() for name in ("admission_time", "discharge_time")]
    ends = [time for time in latest if time is not None]
    if window is None or not ends:
        return everyone, ""
    clock = "admission_time" if getattr(instances.settings, "clock", "") == "admission" else "discharge_time"
    started = visits[clock].gather(instances.frame["visit"])
    open_yet = (started > max(ends) - timedelta(days=float(window))).fill_null(False).to_numpy()
    words = f"{int(open_yet.sum()):,} are left out because the records end before their {window:g} days have passed"
    return everyone[~open_yet], words if open_yet.any() else ""


def known_codes(known: Instances, added: Instances) -> float | None:
    """Return the share of the codes of some instances, as inputs, that occur in known ones; None without a code."""
    total = there = 0
    for kind in KINDS:
        vocabulary = known.inputs(kind)["code"].unique()
        codes = added.inputs(kind)["code"]
        total += len(codes)
        there += int(codes.is_in(vocabulary.implode()).sum())
    return there / total if total else None


def _on_codes(run: Run, added: Instances) -> list[str]:
    share = known_codes(run.reference_instances, added)
    if share is None:
        raise PlmError("no instance of this cohort has a code that may be seen", remedy="give records with codes")
    if share < FEWEST_KNOWN:
        raise PlmError(
            f"only {share:.0%} of the codes of this cohort occur in the bank: it is in other codes than the run",
            remedy="prepare it with the same code tables as the cohort of the run",
        )
    return [f"{share:.0%} of their codes occur in the bank"] if share < MANY_KNOWN else []


def _on_people(run: Run, added: Instances) -> list[str]:
    trained = set(ids_of(run.reference_instances)["subject_id"].to_list())
    again = sum(name in trained for name in ids_of(added)["subject_id"].to_list())
    notes = []
    if again:
        notes.append(f"{again:,} are of patients of the bank who came again; nobody is a reference of oneself")
    if len(added) and added.task.kind.lacks_an_outcome(added.labels):
        notes.append("all of them have the same outcome")
    return notes


def _on_preparation(run: Run, cohort: Cohort) -> list[str]:
    """Say where the cohort was prepared in another way than that of the run."""
    ours, theirs = (each.about.get("identity", {}) for each in (run.cohort, cohort))
    different = differences_between(ours.get("settings"), theirs.get("settings"), "settings")
    tables = [each.get("code_tables") or {} for each in (ours, theirs)]
    names = sorted(name for name in {*tables[0], *tables[1]} if tables[0].get(name) != tables[1].get(name))
    if names:
        different.append(f"other code tables: {', '.join(names)}")
    return [f"the cohort was prepared in another way than that of the run: {'; '.join(different)}"] if different else []
