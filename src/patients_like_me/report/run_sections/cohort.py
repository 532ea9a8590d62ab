"""Whom the run is about: flow, counts per split, label rates and the coverage of code maps."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from patients_like_me.evaluation.subgroups import hidden_strata
from patients_like_me.files import read_json
from patients_like_me.plain_text import FEW, is_small, percent, printable, shown_count
from patients_like_me.records.flow import Flow
from patients_like_me.report.run_report import Block, Figure, Section, Table, Text
from patients_like_me.report.run_sections.material import Material
from patients_like_me.report.small_counts import HIDDEN, flow_to_show
from patients_like_me.tasks.task import SPLITS


def cohort_section(material: Material) -> Section:
    """Return the flow from the source to the cohort, and from the cohort to instances."""
    cohort = material.run.cohort
    blocks: list[Block] = []
    if material.is_synthetic:
        blocks.append(Text("The hospital is synthetic: no number on this page says anything about people.", "warning"))
    found = cohort.statistics()
    blocks.append(
        Text(
            f"Source: {printable(cohort.source)}; cohort {cohort.hash[:16]}. "
            f"{shown_count(int(found['patients']))} patients with {shown_count(int(found['visits']))} visits; per "
            f"patient {found['visits_per_patient']:.2f} visits, {found['conditions_per_patient']:.1f} diagnoses, "
            f"{found['procedures_per_patient']:.1f} procedures and {found['drugs_per_patient']:.1f} drugs."
        )
    )
    flow = _flow(material)
    if flow is not None:
        blocks += [_flow_picture(flow), flow_table(flow)]
    blocks.append(_splits(material))
    coverage = _coverage(material)
    if coverage is not None:
        blocks.append(coverage)
    return Section("cohort", "Cohort", tuple(blocks))


def flow_table(flow: Flow) -> Table:
    """Return the stations of a flow; filters that leave out fewer than 11 are taken together."""
    shown, filters = flow_to_show(flow)
    rows = []
    for step, names in zip(shown.steps, filters, strict=True):
        left_out = shown_count(step.visits_left_out)
        rows.append(("; ".join(printable(name) for name in names), f"{step.patients:,}", f"{step.visits:,}", left_out))
    together = any(len(names) > 1 for names in filters)
    return Table(
        "Flow: patients and visits that are left after every filter."
        + (f" Filters that leave out {FEW} patients or visits are taken together." if together else ""),
        ("station", "patients", "visits", "visits left out"),
        tuple(rows),
        numbers=frozenset({"patients", "visits", "visits left out"}),
        fold="The flow as a table",
    )


def _flow_picture(flow: Flow) -> Figure:
    drawn = base64.b64encode(flow_to_show(flow)[0].svg().encode()).decode()
    picture = f'<img alt="The flow as boxes; the table below says the same" src="data:image/svg+xml;base64,{drawn}">'
    return Figure("Cohort flow", picture, "From all visits of the source, above, to the cohort, below.")


def _flow(material: Material) -> Flow | None:
    folder = material.run.cohort_folder / "flow.json"
    return Flow.from_json(read_json(folder, what="flow of the cohort")) if folder.is_file() else None


def _splits(material: Material) -> Table:
    """Return instances, patients and label rate of every split."""
    instances = material.run.instances
    subjects = instances.frame["subject"].to_numpy()
    rows = []
    for split in SPLITS:
        chosen = instances.rows_of(split)
        patients = len(np.unique(subjects[chosen]))
        rate = label_rate(material, instances.labels[chosen], subjects[chosen]) if len(chosen) else "no instances"
        rows.append((split, shown_count(patients), shown_count(len(chosen)), rate))
    settings = instances.settings
    shares = ", ".join(percent(share) for share in settings.split_shares)
    return Table(
        f"Instances of the task by split. Patients are divided ({settings.split_method}, seed {settings.split_seed}: "
        f"{shares}); all instances of a patient are in one split.",
        ("split", "patients", "instances", "outcome"),
        tuple(rows),
        numbers=frozenset({"patients", "instances"}),
    )


def label_rate(material: Material, labels: Any, subjects: Any) -> str:
    """Write how frequent the outcomes are; hidden where fewer than 11 instances or patients are behind a share."""
    task = material.run.task
    if task.kind.is_set:
        return task.kind.rate_in_words(task.kind.rate(labels, len(material.run.label_vocabulary)))
    names = material.run.label_vocabulary
    members = {
        str(number): (int((labels == number).sum()), frozenset(subjects[labels == number].tolist()))
        for number in range(task.kind.largest_label(len(names)) + 1)
        if (labels == number).any()
    }
    hidden = hidden_strata(members)
    if task.kind.is_event:
        if hidden:
            return f"{HIDDEN}: {FEW} instances or patients with or without it"
        return f"{percent(float((labels == 1).mean()), 1)} {printable(material.decision.event((1,)))}"
    shown = [
        f"{printable(names[int(number)])} {percent(count / len(labels), 1)}"
        for number, (count, _) in members.items()
        if number not in hidden
    ]
    return "; ".join([*shown, *(["other classes hidden"] if hidden else [])])


def _coverage(material: Material) -> Table | None:
    path = material.run.cohort_folder / "coverage.json"
    if not path.is_file():
        return None
    rows = []
    for found in read_json(path, what="coverage of the code maps"):
        missed = int(found["rows_unmapped"])
        none = found["share"] is None
        share = "no rows" if none else HIDDEN if is_small(missed) else percent(float(found["share"]), 1)
        rows.append((printable(found["map"]), shown_count(int(found["rows"])), share, shown_count(missed)))
    return Table(
        "Coverage of the code maps: rows of the source that found a code.",
        ("map", "rows", "mapped", "not mapped"),
        tuple(rows),
        numbers=frozenset({"rows", "mapped", "not mapped"}),
        fold="Coverage of the code maps",
    )
