"""Drug recommendation: which classes of drugs does the patient receive during the current visit?"""

from __future__ import annotations

import polars as pl

from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.kinds import MULTILABEL
from patients_like_me.tasks.labels import code_sets, given_values, with_given
from patients_like_me.tasks.task import Task, TaskSettings, Words


def words(settings: TaskSettings) -> Words:
    """Say what is predicted."""
    del settings
    return Words(
        title="which classes of drugs does the patient receive during the current visit?",
        label="the set of ATC third-level codes ordered during the current visit; its own medications are not an input",
        question=(
            "Predict the medications to prescribe for the current visit. Output a multi-label set of 3-level ATC "
            "codes. Choose any number of codes from the medication vocabulary. Note that a patient may have multiple "
            "medications."
        ),
        answer="A multi-label set of ATC level-3 codes.",
        about="recommended drugs",
        item="drug",
        items="drugs",
        chosen="recommended",
        had="received",
        had_not="did not receive",
    )


def labels(cohort: Cohort, settings: TaskSettings) -> pl.DataFrame:
    """Label every visit that has medications with the set of its ATC-3 codes."""
    del settings
    return with_given(
        code_sets(cohort.codes["medication"].select("visit", "code")),
        code_sets(given_values(cohort, TASK.name).rename({"value": "code"})),
    )


TASK = Task(
    name="drug_recommendation",
    kind=MULTILABEL,
    predicted_at="admission",
    current_inputs=("diagnosis", "procedure"),
    known_inputs=(),
    wording=words,
    labeller=labels,
    label_codes="medication",
    known_by_next_visit=True,
    short_title="Drug recommendation",
    metrics_note="Drugs: averaged over instances, threshold 0.2.",
)
