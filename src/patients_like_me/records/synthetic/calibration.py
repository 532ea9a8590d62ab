"""Bring the marginals of the hospital to the paper's MIMIC-IV cohort, and say how the constants were found.

``SCALES`` are the committed answers of ``solve_scales``: for each kind the factor on all its rates at which the
mean number of distinct categories per visit (CCS for diagnoses and procedures, ATC-3 for drugs) in a reference
hospital is the paper's. After a change of the JSON files or of the table of drug names, put here what
``solve_scales(load_knowledge())`` returns; a test fails when that is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from patients_like_me.records.synthetic.contents import Contents, Scales, draw_contents
from patients_like_me.records.synthetic.courses import Courses, draw_courses
from patients_like_me.records.synthetic.settings import PAPER_VISITS_PER_PATIENT, Draws, SyntheticHospital
from patients_like_me.records.synthetic.syndromes import Booleans, Integers, Knowledge
from patients_like_me.records.synthetic.timeline import draw_timeline

#: The paper's table of cohort statistics, row MIMIC-IV: mean number of distinct records per patient.
PAPER_PER_PATIENT = {"diagnoses": 21.74, "procedures": 4.70, "drugs": 43.89}

SCALES = Scales(diagnoses=0.855, procedures=0.985, drugs=1.172)

REFERENCE_SEED = 20_231_116
REFERENCE_PATIENTS = 6_000
ROUNDS = 8


@dataclass(frozen=True)
class Categories:
    """Tell for every text of a kind which categories it belongs to (texts x categories)."""

    diagnoses: Booleans
    diagnoses_icd9: Booleans
    procedures: Booleans
    drugs: Booleans


def load_categories(knowledge: Knowledge) -> Categories:
    """Look up the CCS and ATC-3 categories of all texts in the code tables of this package."""
    from patients_like_me.codes.drug_names import match_drug_names
    from patients_like_me.codes.hcup import IcdTable, packaged_map

    def ccs(table: IcdTable, codes: Sequence[str]) -> list[list[str]]:
        frame = packaged_map(table)
        known = {} if frame is None else dict(frame.select("code", "ccs").iter_rows())
        return [[known[code]] if code in known else [] for code in codes]

    conditions, procedures, drugs = knowledge.conditions, knowledge.procedures, knowledge.drugs
    new = ccs("icd10cm_ccs", [texts[0] for texts in conditions.texts])
    old = ccs("icd9cm_ccs", [texts[1] for texts in conditions.texts])
    # One common list of CCS categories, so that a visit's count does not depend on its ICD version.
    both = _membership(new + old)
    matches = match_drug_names([texts[0] for texts in drugs.texts])
    return Categories(
        diagnoses=both[: len(new)],
        diagnoses_icd9=both[len(new) :],
        procedures=_membership(ccs("icd10pcs_ccs", [texts[0] for texts in procedures.texts])),
        drugs=_membership([sorted(match.atc3) for match in matches]),
    )


def categories_per_visit(visit: Integers, text: Integers, belongs: Booleans, visits: int) -> NDArray[np.int64]:
    """Count the distinct categories of each visit.

    >>> belongs = np.array([[True, False], [True, True]])
    >>> categories_per_visit(np.array([0, 0, 1]), np.array([0, 1, 0]), belongs, 3).tolist()
    [2, 1, 0]
    """
    entry, category = np.nonzero(belongs[text])
    pairs = np.unique(visit[entry] * belongs.shape[1] + category)
    return np.bincount(pairs // belongs.shape[1], minlength=visits)


def solve_scales(knowledge: Knowledge, *, patients: int = REFERENCE_PATIENTS, rounds: int = ROUNDS) -> Scales:
    """Find the scales at which a reference hospital has the paper's numbers per visit.

    Counts rise with the scale a little slower than in proportion; so each round multiplies a scale by the ratio
    of wanted to found, with a little overshoot, always on the same random numbers.
    """
    settings = SyntheticHospital(patients=patients, seed=REFERENCE_SEED)
    draws = Draws(REFERENCE_SEED, 0)
    courses = draw_courses(knowledge, settings, draws, first_patient=0, patients=patients)
    categories = load_categories(knowledge)
    scales = SCALES
    for _ in range(rounds):
        contents = draw_contents(knowledge, courses, draws, scales)
        found = mean_counts(knowledge, categories, courses, contents, draws)
        corrected = {
            kind: getattr(scales, kind) * (PAPER_PER_PATIENT[kind] / PAPER_VISITS_PER_PATIENT / mean) ** 1.3
            for kind, mean in found.items()
        }
        scales = replace(scales, **corrected)
    return scales


def mean_counts(
    knowledge: Knowledge, categories: Categories, courses: Courses, contents: Contents, draws: Draws
) -> dict[str, float]:
    """Return the mean number of distinct categories per visit for each kind."""
    icd9 = draw_timeline(knowledge, courses, contents, draws).icd9
    dx = contents.diagnoses
    old = icd9[dx.visit]
    counts = {
        "diagnoses": categories_per_visit(dx.visit[~old], dx.text[~old], categories.diagnoses, courses.visits)
        + categories_per_visit(dx.visit[old], dx.text[old], categories.diagnoses_icd9, courses.visits),
        "procedures": categories_per_visit(
            contents.procedures.visit, contents.procedures.text, categories.procedures, courses.visits
        ),
        "drugs": categories_per_visit(contents.drugs.visit, contents.drugs.text, categories.drugs, courses.visits),
    }
    return {kind: float(count.mean()) for kind, count in counts.items()}


def _membership(categories: Sequence[Sequence[str]]) -> Booleans:
    names = sorted({name for row in categories for name in row})
    column = {name: position for position, name in enumerate(names)}
    belongs = np.zeros((len(categories), len(names)), dtype=bool)
    for row, held in enumerate(categories):
        belongs[row, [column[name] for name in held]] = True
    return belongs
