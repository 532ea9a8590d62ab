"""Drug recommendation: which classes of drugs does the patient receive during the current visit?"""

from __future__ import annotations

import re

import polars as pl

from patients_like_me.codes.atc import all_atc3_codes
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.file_errors import shown_value
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
        about="drugs likely given",
        item="drug",
        items="drugs",
        chosen="likely",
        had="received",
        had_not="did not receive",
    )


def labels(cohort: Cohort, settings: TaskSettings) -> pl.DataFrame:
    """Label every visit that has medications with the set of its ATC-3 codes.

    A given label is a medication code of the cohort, or an ATC code of the third level or below in any case, of which
    the third level is kept; anything else is refused.
    """
    del settings
    given = given_values(cohort, TASK.name)
    known = set(cohort.codes["medication"]["code"].unique().to_list())
    codes = {value: value if value in known else _atc3(value) for value in given["value"].unique().to_list()}
    return with_given(
        code_sets(cohort.codes["medication"].select("visit", "code")),
        code_sets(given.select("visit", pl.col("value").replace_strict(codes, return_dtype=pl.String).alias("code"))),
    )


def _atc3(value: str) -> str:
    """Return the ATC-3 code of a label.

    >>> _atc3("c03c"), _atc3("C03CA01")
    ('C03C', 'C03C')
    """
    code = value.strip().upper()
    if not re.fullmatch(r"[A-Z]\d\d[A-Z]([A-Z](\d\d)?)?", code) or code[:4] not in all_atc3_codes():
        raise PlmError(
            f"the labels table gives {shown_value(value)} for the task '{TASK.name}', which is neither an ATC code "
            "nor a medication code of the cohort",
            remedy="give ATC codes of the third level or below, such as C03C or C03CA01",
        )
    return code[:4]


TASK = Task(
    name="drug_recommendation",
    kind=MULTILABEL,
    predicted_at="admission",
    current_inputs=("diagnosis", "procedure"),
    known_inputs=(),
    wording=words,
    labeller=labels,
    compared=(
        "auprc_per_instance",
        "f1_per_instance@0.2",
        "f1_per_instance@tuned",
        "auroc_per_code",
        "interaction_rate@tuned",
    ),
    label_codes="medication",
    known_by_next_visit=True,
    short_title="Drug recommendation",
    metrics_note="Drugs: averaged over instances, threshold 0.2.",
)
