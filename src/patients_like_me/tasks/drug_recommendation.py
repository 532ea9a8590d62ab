"""Drug recommendation: which classes of drugs does the patient receive during the current visit?"""

from __future__ import annotations

import polars as pl

from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.labels import given_values, with_given
from patients_like_me.tasks.task import Task, TaskSettings


def drug_labels(cohort: Cohort, settings: TaskSettings) -> pl.DataFrame:
    """Label every visit that has medications with the set of its ATC-3 codes."""
    del settings
    return with_given(
        code_sets(cohort.codes["medication"].select("visit", "code")),
        code_sets(given_values(cohort, "drug_recommendation").rename({"value": "code"})),
    )


def code_sets(codes: pl.DataFrame) -> pl.DataFrame:
    """Gather rows of (visit, code) into one sorted list per visit.

    >>> code_sets(pl.DataFrame({"visit": [1, 0, 1], "code": ["B01A", "A02B", "A10A"]})).rows()
    [(0, ['A02B']), (1, ['A10A', 'B01A'])]
    """
    return codes.group_by("visit").agg(pl.col("code").unique().sort().alias("label")).sort("visit")


DRUG_RECOMMENDATION = Task(
    name="drug_recommendation",
    title="which classes of drugs does the patient receive during the current visit?",
    kind="multilabel",
    label="the set of ATC third-level codes ordered during the current visit; its own medications are no input",
    predicted_at="admission",
    current_inputs=("diagnosis", "procedure"),
    known_inputs=(),
    metrics=("auprc_per_instance", "f1_per_instance", "jaccard_per_instance"),
    question="Which medications should be prescribed during the patient's current visit?",
    answer="Answer with a set of ATC third-level codes from the medication vocabulary; several may apply.",
    labeller=drug_labels,
)
