"""Codes and drugs of a visit belong together, persist in a patient and follow the stage."""

from __future__ import annotations

import numpy as np

from patients_like_me.records.synthetic.contents import Entries
from patients_like_me.records.synthetic.syndromes import Items, load_knowledge

from .conftest import Block


def has(entries: Entries, items: Items, name: str, visits: int) -> np.ndarray:
    held = np.zeros(visits, dtype=bool)
    held[entries.visit[entries.item == items.index_of(name)]] = True
    return held


def test_every_visit_has_a_diagnosis_and_every_complete_one_all_kinds(block: Block) -> None:
    courses, contents = block.courses, block.contents
    visits = np.arange(courses.visits)
    assert np.isin(visits, contents.diagnoses.visit).all()
    assert np.isin(visits[~courses.incomplete], contents.procedures.visit).all()
    assert not np.isin(visits[courses.incomplete], contents.procedures.visit).any()
    assert np.isin(visits[~courses.incomplete], contents.drugs.visit).mean() > 0.999
    assert 0.015 < courses.incomplete.mean() < 0.04


def test_the_principal_diagnosis_belongs_to_the_reason(block: Block) -> None:
    knowledge, diagnoses = load_knowledge(), block.contents.diagnoses
    first = np.searchsorted(diagnoses.visit, np.arange(block.courses.visits))
    weights = knowledge.syndromes.principal[block.courses.reason, diagnoses.item[first]]
    assert (weights > 0).all()


def test_drugs_follow_diagnoses_within_a_syndrome(block: Block) -> None:
    knowledge, visits = load_knowledge(), block.courses.visits
    dx, drugs = block.contents.diagnoses, block.contents.drugs
    failure = block.courses.reason == knowledge.syndromes.names.index("heart failure")
    fibrillation = has(dx, knowledge.conditions, "atrial fibrillation", visits)
    anticoagulant = has(drugs, knowledge.drugs, "oral anticoagulant", visits)
    assert anticoagulant[failure & fibrillation].mean() > 1.15 * anticoagulant[failure & ~fibrillation].mean()


def test_patients_keep_their_drugs_and_their_choice_among_equals(block: Block) -> None:
    knowledge, courses, drugs = load_knowledge(), block.courses, block.contents.drugs
    statin = knowledge.drugs.index_of("statin")
    chosen = np.full(courses.visits, -1)
    rows = drugs.item == statin
    chosen[drugs.visit[rows]] = drugs.text[rows]
    before = np.flatnonzero(courses.patient[1:] == courses.patient[:-1])
    given, again = chosen[before] >= 0, chosen[before + 1] >= 0
    assert again[given].mean() > 1.6 * again[~given].mean()
    both = given & again
    assert 0.75 < (chosen[before] == chosen[before + 1])[both].mean() < 0.98


def test_chronic_conditions_come_back_and_acute_ones_rarely(block: Block) -> None:
    conditions, courses = load_knowledge().conditions, block.courses
    before = np.flatnonzero(courses.patient[1:] == courses.patient[:-1])
    for name, least, most in (("hypothyroidism", 0.8, 1.0), ("hypokalaemia", 0.0, 0.35)):
        held = has(block.contents.diagnoses, conditions, name, courses.visits)
        assert least <= held[before + 1][held[before]].mean() <= most, name


def test_kidney_disease_stages_follow_the_course(block: Block) -> None:
    conditions, diagnoses = load_knowledge().conditions, block.contents.diagnoses
    rows = diagnoses.item == conditions.index_of("chronic kidney disease")
    codes = np.array([conditions.texts[text][0] for text in diagnoses.text[rows]])
    stage = block.courses.stage[diagnoses.visit[rows]]
    assert stage[codes == "N182"].max() <= stage[codes == "N184"].min() <= stage[codes == "N185"].min()


def test_no_condition_stands_beside_one_that_excludes_it(block: Block) -> None:
    knowledge, courses, diagnoses = load_knowledge(), block.courses, block.contents.diagnoses
    present = np.zeros((courses.visits, len(knowledge.conditions.names)), dtype=bool)
    present[diagnoses.visit, diagnoses.item] = True
    for condition, other in knowledge.exclusions:
        assert not (present[:, condition] & present[:, other]).any(), knowledge.conditions.names[condition]


def test_items_of_one_sex_stay_with_it(block: Block) -> None:
    knowledge, courses = load_knowledge(), block.courses
    for entries, items in (
        (block.contents.diagnoses, knowledge.conditions),
        (block.contents.procedures, knowledge.procedures),
        (block.contents.drugs, knowledge.drugs),
    ):
        female, sex = courses.female[courses.patient[entries.visit]], items.sex[entries.item]
        assert female[sex == 1].all()
        assert not female[sex == 2].any()
