"""The clinical knowledge holds real codes and names that our own code tables map."""

from __future__ import annotations

import re

import numpy as np
import pytest

from patients_like_me.codes.hcup import IcdTable, packaged_map
from patients_like_me.records.synthetic.syndromes import BUNDLES, Knowledge, load_knowledge


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return load_knowledge()


def known_codes(table: IcdTable) -> set[str]:
    frame = packaged_map(table)
    assert frame is not None
    return set(frame["code"])


def test_every_icd10_diagnosis_code_is_in_the_ccs_table(knowledge: Knowledge) -> None:
    codes = {texts[0] for texts in knowledge.conditions.texts}
    assert len(codes) > 700
    assert codes <= known_codes("icd10cm_ccs")


def test_every_icd9_diagnosis_code_is_in_the_ccs_table(knowledge: Knowledge) -> None:
    codes = {texts[1] for texts in knowledge.conditions.texts} - {""}
    assert len(codes) > 400
    assert codes <= known_codes("icd9cm_ccs")


def test_few_conditions_lack_an_icd9_code(knowledge: Knowledge) -> None:
    without = [texts[0] for texts in knowledge.conditions.texts if not texts[1]]
    assert all(re.match("Y90|Z3A", code) for code in without), without


def test_every_procedure_code_is_in_the_ccs_table(knowledge: Knowledge) -> None:
    codes = {texts[0] for texts in knowledge.procedures.texts}
    assert len(codes) > 200
    assert codes <= known_codes("icd10pcs_ccs")


def test_every_drug_name_maps_to_atc3(knowledge: Knowledge) -> None:
    from patients_like_me.codes.drug_names import match_drug_names

    names = sorted({texts[0] for texts in knowledge.drugs.texts})
    unmapped = [name for name, match in zip(names, match_drug_names(names), strict=True) if not match.atc3]
    assert len(names) > 300
    assert unmapped == []


def test_every_item_can_be_brought_about_by_some_source(knowledge: Knowledge) -> None:
    conditions = knowledge.condition_rates.sum(axis=0) + knowledge.syndromes.principal.sum(axis=0)
    assert (conditions > 0).all()
    assert (knowledge.procedure_rates.sum(axis=0) > 0).all()
    assert (knowledge.drug_rates.sum(axis=0) + knowledge.treatment_rates.sum(axis=0) > 0).all()


def test_every_syndrome_has_a_principal_condition_for_each_sex_it_meets(knowledge: Knowledge) -> None:
    syndromes, sex = knowledge.syndromes, knowledge.conditions.sex
    assert (syndromes.principal[:, sex != 2].sum(axis=1) > 0).all()
    meets_men = syndromes["female"] < 1
    assert (syndromes.principal[meets_men][:, sex != 1].sum(axis=1) > 0).all()


def test_probabilities_and_weights_are_in_range(knowledge: Knowledge) -> None:
    for name in ("female", "recurs", "surgery", "critical", "elective"):
        assert ((knowledge.syndromes[name] >= 0) & (knowledge.syndromes[name] <= 1)).all(), name
    for items in (knowledge.conditions, knowledge.procedures, knowledge.drugs):
        assert ((items.persists >= 0) & (items.persists < 1)).all()
        assert (np.diff(items.cumulative, axis=1) >= -1e-12).all()
        assert items.first_text[-1] == len(items.texts)


def test_sources_stand_in_the_described_order(knowledge: Knowledge) -> None:
    syndromes, traits = len(knowledge.syndromes.names), len(knowledge.traits.names)
    assert knowledge.condition_rates.shape[0] == 2 * syndromes + traits + len(BUNDLES)
    failure = knowledge.syndromes.names.index("heart failure")
    diuretic = knowledge.drugs.index_of("loop diuretic")
    resuscitation = knowledge.drugs.index_of("comfort drug")
    assert knowledge.drug_rates[failure, diuretic] > 2
    assert 0 < knowledge.drug_rates[syndromes + failure, diuretic] < knowledge.drug_rates[failure, diuretic]
    assert knowledge.drug_rates[-1, resuscitation] > 1
