"""Patients and courses behave as the documented model says."""

from __future__ import annotations

import numpy as np
import pytest

from patients_like_me.records.synthetic import SyntheticHospital
from patients_like_me.records.synthetic.courses import NONE, draw_courses
from patients_like_me.records.synthetic.settings import Draws
from patients_like_me.records.synthetic.syndromes import load_knowledge

from .conftest import Block


def fifteen_day_returns(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of visits that have a successor, and whether it comes within 15 days of admission."""
    patient, admitted = block.courses.patient, block.timeline.admitted
    rows = np.flatnonzero(patient[1:] == patient[:-1])
    return rows, admitted[rows + 1] - admitted[rows] <= 15 * 24 * 60


@pytest.mark.parametrize("asked", [1.0, 1.88, 2.39, 4.0])
def test_visits_per_patient_are_as_asked(asked: float) -> None:
    settings = SyntheticHospital(patients=20_000, visits_per_patient=asked)
    courses = draw_courses(load_knowledge(), settings, Draws(3, 0), first_patient=0, patients=20_000)
    assert courses.visits / courses.patients == pytest.approx(asked, rel=0.03)


def test_fifteen_day_readmission_is_plausible(block: Block) -> None:
    _, returned = fifteen_day_returns(block)
    assert 0.10 <= returned.mean() <= 0.18


def test_severity_raises_stay_and_readmission(block: Block) -> None:
    severity = block.courses.severity[block.courses.patient]
    severe, mild = severity > 0.67, severity < -0.67
    stay = block.timeline.stay_days
    assert np.median(stay[severe]) > 1.4 * np.median(stay[mild])
    rows, returned = fifteen_day_returns(block)
    assert returned[severe[rows]].mean() > 1.5 * returned[mild[rows]].mean()


def test_severity_raises_visits_and_death(block: Block) -> None:
    courses = block.courses
    visits = np.bincount(courses.patient)
    severe, mild = courses.severity > 0.67, courses.severity < -0.67
    died = courses.died[courses.last_visit]
    assert visits[severe].mean() > 1.3 * visits[mild].mean()
    assert died[severe].mean() > 2 * died[mild].mean()


def test_an_early_return_makes_another_likelier(block: Block) -> None:
    rows, returned = fifteen_day_returns(block)
    came_early = block.courses.early[rows]
    assert returned[came_early].mean() > 1.3 * returned[~came_early].mean()


def test_readmission_and_stay_depend_on_the_syndrome(block: Block) -> None:
    names = load_knowledge().syndromes.names
    rows, returned = fifteen_day_returns(block)
    reason = block.courses.reason
    hips, sickle = names.index("hip or knee replacement"), names.index("sickle cell disease")
    assert returned[reason[rows] == sickle].mean() > 2 * returned[reason[rows] == hips].mean()
    stay = block.timeline.stay_days
    assert np.median(stay[reason == names.index("leukaemia")]) > 2 * np.median(stay[reason == hips])


def test_stays_grow_with_procedures_within_a_syndrome(block: Block) -> None:
    sepsis = block.courses.reason == load_knowledge().syndromes.names.index("sepsis")
    procedures = np.bincount(block.contents.procedures.visit, minlength=block.courses.visits)
    stay = block.timeline.stay_days
    assert np.median(stay[sepsis & (procedures >= 5)]) > 1.3 * np.median(stay[sepsis & (procedures <= 2)])


def test_stages_never_go_back(block: Block) -> None:
    same_patient = block.courses.patient[1:] == block.courses.patient[:-1]
    assert (np.diff(block.courses.stage)[same_patient] >= 0).all()


def test_only_women_give_birth_and_only_last_visits_end_in_death(block: Block) -> None:
    courses, names = block.courses, load_knowledge().syndromes.names
    births = np.isin(courses.reason, [names.index("vaginal birth"), names.index("caesarean birth")])
    assert births.any()
    assert courses.female[courses.patient[births]].all()
    assert set(np.flatnonzero(courses.died)) <= set(courses.last_visit)


def test_first_visits_are_for_the_main_syndrome_and_seconds_are_companions(block: Block) -> None:
    courses, companions = block.courses, load_knowledge().syndromes.companions
    first = courses.order == 0
    assert (courses.reason[first] == courses.main).all()
    with_second = courses.second != NONE
    assert 0.15 < with_second.mean() < 0.45
    assert (companions[courses.main[with_second], courses.second[with_second]] > 0).all()
