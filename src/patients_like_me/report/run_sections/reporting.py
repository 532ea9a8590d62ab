"""TRIPOD+AI for this run: what is known of every item, and what is left for the authors to say."""

from __future__ import annotations

from typing import Final

from patients_like_me.plain_text import printable
from patients_like_me.report.run_report import Section, Table, Text
from patients_like_me.report.run_sections.material import Material
from patients_like_me.report.tripod import ITEMS, SOURCE, Answer, Status

_GAPS: Final = {
    "1": "the authors' title",
    "2": "the authors' abstract",
    "3a": "clinical context and earlier models",
    "3b": "population, place in care and users that the authors have in mind",
    "3c": "inequalities known for this population",
    "5b": "the period of the data; a report shows no dates",
    "6a": "kind, number and place of the hospitals",
    "10": "a justification of the sample size",
    "16": "whether care or coding differ between places or years; the splits here are one cohort",
    "17": "ethics approval and consent or its waiver",
    "18a": "funding",
    "18b": "conflicts of interest",
    "18c": "a protocol, or that there is none",
    "18d": "a registration, or that there is none",
    "18e": "who can get the data, and how",
    "19": "the part of patients and the public, or that there was none",
    "25": "interpretation by the authors",
    "27c": "next steps",
}


def reporting_section(material: Material) -> Section:
    """Return every item with what this report knows of it, the gaps named."""
    answers = answers_of(material)
    rows = tuple((item.number, item.topic, answers[item.number].status, answers[item.number].words) for item in ITEMS)
    numbers = {status: sum(each.status == status for each in answers.values()) for status in _MEANINGS}
    counts = "; ".join(f"{numbers[status]} {meaning}" for status, meaning in _MEANINGS.items())
    return Section(
        "tripod",
        "TRIPOD+AI",
        (
            Text(
                f"{len(ITEMS)} items: {counts}. A report from a machine does not know why a study was made: gaps are "
                "for the authors to fill, and an item that is known here can still be badly done."
            ),
            Table(f"{SOURCE}.", ("item", "topic", "status", "here"), rows),
        ),
    )


_MEANINGS: Final[dict[Status, str]] = {
    "known": "known (in this report)",
    "partly": "partly known",
    "gap": "gaps",
    "not applicable": "not applicable",
}


def answers_of(material: Material) -> dict[str, Answer]:
    """Return an answer to every item."""
    found = {number: Answer("gap", words) for number, words in _GAPS.items()}
    found |= _methods(material) | _analysis(material) | _results(material)
    return {item.number: found[item.number] for item in ITEMS}


def _methods(material: Material) -> dict[str, Answer]:
    run, task = material.run, material.run.task
    settings = run.instances.settings
    inputs = (
        "only what was known at prediction time"
        if settings.inputs == "known"
        else "codes of the current visit too, which are assigned after discharge (retrospective)"
    )
    routine = "a synthetic hospital" if material.is_synthetic else "routine hospital records"
    return {
        "4": Answer("known", "development and internal evaluation on held-out patients"),
        "5a": Answer(
            "partly", f"{routine} ({printable(run.cohort.source)}); missing: why these, and whom they represent"
        ),
        "6b": Answer("partly", "filters of the cohort, see Cohort; missing: the source's own criteria"),
        "6c": Answer("partly", "drugs are inputs or the outcome; missing: what treatments do to the outcome"),
        "7": Answer("known", "see Leakage audit and the coverage of code maps in Cohort; alike for all groups"),
        "8a": Answer("partly", f"{printable(task.label)}; missing: why this outcome"),
        "8b": Answer("not applicable", "the outcome is computed from the records"),
        "8c": Answer("not applicable", "the outcome is computed from the records"),
        "9a": Answer("known", "all coded diagnoses, procedures and drugs, age, sex and demographics; none selected"),
        "9b": Answer("known", f"codes of visits, mapped to CCS and ATC where tables exist; {inputs}"),
        "9c": Answer("partly", "codes are given by clinicians and coders of the source; missing: their qualification"),
        "11": Answer(
            "known", "what is not recorded counts as absent and is left out of the inputs; nothing is imputed"
        ),
    }


def _analysis(material: Material) -> dict[str, Answer]:
    run, identity = material.run, material.run.identity
    kind = run.task.kind
    steps = f"{printable(run.record.system.description)}, {printable(identity.system)}"
    if run.has_patient_graph:
        kinds = "language model and graph network over similar patients" if material.scene else "language model alone"
        steps = f"{kinds}, strategy {printable(run.name)}"
    inputs = "as codes present or absent, and demographics"
    if tokens := identity.settings.get("max_tokens"):
        inputs = f"as text, names of codes in the order of visits, cut to {tokens} tokens"
    return {
        "12a": Answer("known", "patients divided into training, validation and test, see Cohort"),
        "12b": Answer("known", inputs),
        "12c": Answer("known", f"{steps}; what is tuned is tuned on validation; see Settings and versions"),
        "12d": Answer("gap", "hospitals are not told apart"),
        "12e": Answer("known", "see Metrics and Calibration, each with its definition; no measure of clinical utility"),
        "12f": Answer("not applicable", "the model was not updated"),
        "12g": Answer("known", "by the trained model itself, written with the run"),
        "13": Answer("not applicable", "no method against class imbalance is used"),
        "14": Answer(
            "partly",
            "performance" + (" and coverage of references" if material.use else "") + " by subgroup; missing: "
            "what was done about differences, if anything",
        ),
        "15": Answer("known", kind.output_words),
        "18f": Answer("partly", f"patients-like-me {identity.version}; missing: where the authors' own code is"),
    }


def _results(material: Material) -> dict[str, Answer]:
    model = Answer("known", "the run folder: weights, settings and plm predict; it holds patients' data")
    if not material.run.capabilities.newcomers:
        model = Answer("partly", "the run folder: settings and parameters; missing: a way to predict new patients")
    synthetic = "the hospital is synthetic; " if material.is_synthetic else ""
    return {
        "20a": Answer("known", "see Cohort"),
        "20b": Answer(
            "partly", "counts, averages and strata, see Cohort and Subgroups; missing: a table of characteristics"
        ),
        "20c": Answer("partly", "outcome by split, see Cohort; missing: predictors by split"),
        "21": Answer("known", "see Cohort; counts under 11 are hidden"),
        "22": model,
        "23a": Answer("known", "see Metrics, Calibration and Subgroups"),
        "23b": Answer("not applicable", "not examined"),
        "24": Answer("not applicable", "the model was not updated"),
        "26": Answer("partly", f"{synthetic}one cohort, no other hospital, one training seed; missing: further limits"),
        "27a": Answer(
            "partly", "unmapped codes are counted, and instances without a reference are named; missing: rules for use"
        ),
        "27b": Answer("partly", "codes of earlier visits are needed, no input by hand; missing: the skill of users"),
    }
