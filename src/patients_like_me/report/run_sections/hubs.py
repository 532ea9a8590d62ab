"""Hub patients: who serves as a reference for very many, and how uneven the references are spread."""

from __future__ import annotations

from typing import Final

import numpy as np

from patients_like_me.graph.coverage import are_hubs, is_almost_empty, suppliers_of_half
from patients_like_me.plain_text import FEW, is_small, percent, shown_count
from patients_like_me.report.run_report import Section, Table, Text, absent
from patients_like_me.report.run_sections.material import Material
from patients_like_me.report.run_sections.reference_use import ReferenceUse
from patients_like_me.report.small_counts import Group, shown_share

_KEY, _TITLE = "hubs", "Hub patients"
HUBS: Final = 10
_WHY: Final = " Counts of shared diagnoses make hubs of patients with long lists of diagnoses."


def hubs_section(material: Material) -> Section:
    """Return the most used reference patients under pseudonyms, with the size of their audiences."""
    use, scene = material.use, material.scene
    if use is None or scene is None:
        return absent(_KEY, _TITLE, material.no_graph)
    if not use.edges:
        return absent(_KEY, _TITLE, "no test instance has a reference")
    audiences = use.audiences
    everyone = material.evaluation.predictions.number_of_patients
    where = "training patients" if scene.mode == "bank" else "other test patients"
    counts = list(audiences.values())[:HUBS]
    rows = [
        (f"H{number}", f"{count:,}", percent(count / everyone, 1))
        for number, count in enumerate(counts, start=1)
        if not is_small(count)
    ]
    if few := len(counts) - len(rows):
        name = f"H{len(counts)}" if few == 1 else f"H{len(rows) + 1} to H{len(counts)}, each"
        rows.append((name, FEW, "hidden"))
    return Section(
        _KEY,
        _TITLE,
        (
            Text(
                f"References are {where}. A hub is shown to very many patients: a mistake in its record, or an "
                "unusual course, reaches all of them." + (_WHY if material.run.has_patient_graph else "")
            ),
            Text(concentration(use)),
            *((Text(words, "warning"),) if (words := hub_warning(use) or empty_warning(use)) else ()),
            Table(
                f"The {len(counts)} most used reference patients. Share: of all {shown_count(everyone)} test "
                "patients. The names H1, H2, ... are valid on this page only.",
                ("reference patient", "shown to test patients", "share"),
                tuple(rows),
                numbers=frozenset({"shown to test patients", "share"}),
            ),
        ),
    )


def hub_warning(use: ReferenceUse) -> str:
    """Say where very few patients make up half of all shown references; nothing where they are spread.

    In a graph that is almost empty few references come from few patients, and nobody is a hub.
    """
    if is_almost_empty(use.neighbors):
        return ""
    suppliers = suppliers_of_half(np.unique(use.reference_patient, return_counts=True)[1])
    candidates = len(np.unique(use.patients[use.candidates]))
    if not are_hubs(suppliers, candidates):
        return ""
    return (
        f"{shown_count(suppliers).capitalize()} of {shown_count(candidates)} patients make up half of all references "
        "that are shown: most predictions are compared with the same few records."
    )


def empty_warning(use: ReferenceUse) -> str:
    """Say where nearly no test instance has a reference; nothing elsewhere."""
    if not is_almost_empty(use.neighbors):
        return ""
    return (
        "The graph is almost empty: nearly all test instances have no reference. How the few references are spread "
        "says nothing about hubs; see Coverage of references."
    )


def concentration(use: ReferenceUse) -> str:
    """Say how unevenly the references are spread over the patients who could be one."""
    candidates = np.unique(use.patients[use.candidates])
    used = np.unique(use.reference_patient)
    unused = np.setdiff1d(candidates, used)
    times = np.sort(np.unique(use.reference_patient, return_counts=True)[1])[::-1]
    half = suppliers_of_half(times)
    first = list(use.audiences)[:HUBS]
    nodes = use.candidates
    of_hubs = np.isin(use.patients[nodes], first)
    share = times[:HUBS].sum() / times.sum()
    never = shown_share(Group(len(unused), frozenset(unused.tolist())), Group(len(used), frozenset(used.tolist())))
    return (
        f"{shown_count(len(candidates)).capitalize()} patients could be a reference; share of them shown to nobody: "
        f"{never}. "
        f"{shown_count(half).capitalize()} patients make up half of all {use.edges:,} shown references, the {HUBS} "
        f"most frequent ones {percent(float(share), 1)}. Instances of the hubs have a median of "
        f"{np.median(use.diagnoses[nodes[of_hubs]]):g} distinct diagnoses, all candidates "
        f"{np.median(use.diagnoses[nodes]):g}."
        + (f" Numbers of {FEW} patients are not given." if is_small(half) else "")
    )
