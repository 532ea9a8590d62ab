"""What the drug systems know beside the records: labels, interactions between them, and their molecules."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from patients_like_me.codes.interactions import Interactions
from patients_like_me.codes.molecules import SMILES_TABLE, DrugStructures, drug_structures, installed_smiles
from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted
from patients_like_me.systems.drug_safety import KnownInteractions
from patients_like_me.systems.drug_visits import medication_columns
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.visit_network import Facts, Knowledge, hash_of_tables, vocabularies_of

INTERACTIONS, MOLECULES = "interactions", "molecules"
TABLES = {"atc3_interactions": INTERACTIONS, SMILES_TABLE: MOLECULES}


def known_drugs(problem: Problem, settings: Any, vocabularies: Vocabularies, *, molecules: bool = False) -> Knowledge:
    """Return what is known about the labels, except what ``settings.without`` names; the notes say what it covers.

    A table that knows nothing about any label is refused: the system would be the one without it, under its own name.
    """
    del vocabularies
    labels = problem.instances.label_vocabulary
    facts: dict[str, Any] = {"labels": list(labels), "tables": hash_of_tables(*TABLES)}
    notes: list[str] = []
    if INTERACTIONS not in settings.without:
        known = KnownInteractions.of_labels(_installed_interactions(), labels)
        pairs = known.pairs(known.covered)
        facts[INTERACTIONS] = {"pairs": [list(pair) for pair in pairs], "covered": known.covered.int().tolist()}
        covered = int(known.covered.sum())
        if covered < 2:
            raise PlmError(
                f"the table of interactions covers {covered} of {counted(len(labels), 'drug code')}, so no pair",
                remedy=f"use records with ATC-3 codes, or do without: --set 'without=[\"{INTERACTIONS}\"]'",
            )
        prescribed = known.rates(torch.as_tensor(problem.targets > 0)).mean()
        notes.append(
            f"{covered} of {counted(len(labels), 'drug code')} are covered by the table of interactions; "
            f"{counted(len(pairs), 'pair')} of them interact; the interaction rate of the training prescriptions is "
            f"{float(prescribed):.3f}, the target {settings.target_rate:g}"
        )
    if molecules and MOLECULES not in settings.without:
        smiles = installed_smiles()
        if smiles is None:
            raise PlmError(f"no molecules ({SMILES_TABLE}) are installed", remedy="see: plm codes status")
        structures = drug_structures(smiles, labels)
        if not structures.molecules:
            raise PlmError(
                f"the table of molecules has none of {counted(len(labels), 'drug code')}",
                remedy=f"use records with ATC-3 codes, or do without: --set 'without=[\"{MOLECULES}\"]'",
            )
        facts[MOLECULES] = structures.as_json()
        notes.append(structures.sentence())
    return Knowledge(facts, tuple(notes))


def interactions_of(facts: Facts) -> KnownInteractions | None:
    """Return the interactions between the labels; None where the system does without."""
    if INTERACTIONS not in facts:
        return None
    covered = np.array(facts[INTERACTIONS]["covered"], dtype=bool)
    matrix = np.zeros((len(covered), len(covered)), dtype=bool)
    for first, second in facts[INTERACTIONS]["pairs"]:
        matrix[first, second] = matrix[second, first] = True
    return KnownInteractions(matrix, covered)


def structures_of(facts: Facts) -> DrugStructures:
    """Return the molecules and pieces of the labels; none where the system does without."""
    if MOLECULES not in facts:
        return DrugStructures.none(tuple(facts["labels"]))
    return DrugStructures.from_json(facts[MOLECULES])


def label_columns(facts: Facts) -> Any:
    """Return the output column of every medication number of the inputs."""
    return medication_columns(vocabularies_of(facts).codes["medication"], tuple(facts["labels"]))


def _installed_interactions() -> Interactions:
    found = Interactions.installed()
    if found is None:
        raise PlmError("no interactions (atc3_interactions) are installed", remedy="see: plm codes status")
    return found
