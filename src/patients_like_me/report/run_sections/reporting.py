"""TRIPOD+AI for this run: what is known of every item, and what is left for the authors to say."""

from __future__ import annotations

from typing import Final

from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import KINDS, TABLE_OF_KIND, Kind
from patients_like_me.report.run_report import Section, Table, Text
from patients_like_me.report.run_sections.material import Material
from patients_like_me.report.tripod import ITEMS, SOURCE, Answer, Status
from patients_like_me.tasks.labels import given_values

#: Who fills in the checklist must ask the source.
_UNKNOWN: Final = "not known from these records"
_TREATMENTS: Final[tuple[Kind, ...]] = ("procedure", "medication")
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
    cohort = run.cohort
    records = "a synthetic hospital" if material.is_synthetic else "records that were read"
    kinds = [TABLE_OF_KIND[kind] for kind in KINDS if cohort.codes[kind].height]
    return {
        "4": Answer("known", "development and internal evaluation on held-out patients"),
        "5a": Answer(
            "partly", f"{records} ({printable(cohort.source)}); missing: how they arose, why these, whom they represent"
        ),
        "6b": Answer("partly", "filters of the cohort, see Cohort; missing: the source's own criteria"),
        "6c": _treatments(material),
        "7": Answer("known", "see Leakage audit and the coverage of code maps in Cohort; alike for all groups"),
        "8a": Answer("partly", f"{printable(task.label)}; missing: why this outcome"),
        **_outcome(material),
        "9a": Answer(
            "known", f"all coded {_joined(kinds)}, age, sex and demographics as far as recorded; none selected"
        ),
        "9b": Answer("known", f"codes of visits, mapped to CCS and ATC where tables exist; {inputs}"),
        "9c": Answer("gap", f"who gave the codes: {_UNKNOWN}"),
        "11": Answer(
            "known", "what is not recorded counts as absent and is left out of the inputs; nothing is imputed"
        ),
    }


def _treatments(material: Material) -> Answer:
    """Say which treatments the records hold, and that nobody asked what they do."""
    cohort = material.run.cohort
    kinds = [TABLE_OF_KIND[kind] for kind in _TREATMENTS if cohort.codes[kind].height]
    if not kinds:
        return Answer("gap", f"treatments: {_UNKNOWN} (neither procedures nor drugs are in the cohort)")
    also = [f"no {TABLE_OF_KIND[kind]} are in the cohort; " for kind in _TREATMENTS if TABLE_OF_KIND[kind] not in kinds]
    return Answer(
        "partly",
        f"{_joined(kinds)} are inputs or the outcome; {''.join(also)}missing: what treatments do to the outcome",
    )


def _outcome(material: Material) -> dict[str, Answer]:
    """Say who judged the outcome: nobody where it is computed, and who knows where it was given."""
    run = material.run
    given = set(given_values(run.cohort, run.task.name)["visit"].to_list())
    if run.task.recomputed is None and not given:
        words = "the outcome is read from the codes of the visit"
        return {"8b": Answer("gap", f"{words}; who gave them: {_UNKNOWN}"), "8c": Answer("gap", f"{words}; {_UNKNOWN}")}
    if not given.intersection(run.instances.frame["visit"].to_list()):
        computed = Answer("not applicable", "the outcome is computed from the times of the visits")
        return {"8b": computed, "8c": computed}
    words = "the outcome was given with the records; "
    return {
        "8b": Answer("gap", f"{words}who judged it: {_UNKNOWN}"),
        "8c": Answer("gap", f"{words}whether its assessment was blinded: {_UNKNOWN}"),
    }


def _joined(words: list[str]) -> str:
    """Write a list as a person does.

    >>> _joined(["diagnoses", "procedures", "medications"]), _joined([])
    ('diagnoses, procedures and medications', 'codes')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "codes"


def _entering(material: Material) -> str:
    """Say how predictors enter the model, from the settings of its system."""
    settings = material.run.identity.settings
    tokens, text = settings.get("max_tokens"), settings.get("language_model")
    found = []
    if settings.get("bag"):
        places = ", hospital and unit where recorded" if settings["bag"].get("places") else ""
        earlier = ", those of earlier visits by how many have them" if settings["bag"].get("earlier") == "count" else ""
        found.append(f"codes as present or absent{earlier}; demographics{places}")
    if tokens and text != "none":
        found.append(f"as text, names of codes in the order of visits, cut to {tokens} tokens")
    return "; ".join(found) or "codes and demographics, in the way of the system, see Settings and versions"


def _clusters(material: Material) -> Answer:
    """Say whether the hospitals of the records are told apart."""
    sites = material.run.cohort.visits["site"].drop_nulls().n_unique()
    if not sites:
        return Answer("gap", f"hospitals: {_UNKNOWN} (no visit has a site)")
    if sites == 1:
        return Answer("not applicable", "all visits with a site are of one hospital")
    if (material.run.identity.settings.get("bag") or {}).get("places"):
        return Answer("partly", "the hospital of a visit is an input; missing: differences between hospitals")
    return Answer("gap", "hospitals are recorded, but the model does not tell them apart")


def _limits(material: Material) -> str:
    """Return the limits that the records and the run show."""
    cohort = material.run.cohort
    found = ["the hospital is synthetic"] if material.is_synthetic else []
    found += ["one cohort: no patients of other sources or a later time", "one training seed"]
    if cohort.unordered:
        found.append(printable(cohort.unordered))
    elif cohort.visits["admission_time"].is_null().all():
        found.append("the records have no dates, so times within and between visits are not known")
    found += [f"{TABLE_OF_KIND[kind]}: {why}" for kind, why in cohort.missing_kinds.items()]
    return "; ".join(found)


def _needed(material: Material) -> str:
    """Return which records a prediction needs, from those of the run."""
    instances = material.run.instances
    current = [TABLE_OF_KIND[kind] for kind in instances.task.inputs_of_current_visit(instances.settings)]
    held = [TABLE_OF_KIND[kind] for kind in KINDS if instances.cohort.codes[kind].height]
    now = [each for each in current if each in held]
    if not instances.history.height:
        return f"{_joined(now)} of the current visit" if now else "age, sex and demographics"
    if not now:
        return f"{_joined(held)} of earlier visits"
    also = "the current visit and of earlier ones" if now == held else "the current visit, and codes of earlier ones"
    return f"{_joined(now)} of {also}"


def _analysis(material: Material) -> dict[str, Answer]:
    run, identity = material.run, material.run.identity
    kind = run.task.kind
    steps = f"{printable(run.record.system.description)}, {printable(identity.system)}"
    if run.has_patient_graph:
        graph = " and graph network over similar patients" if run.uses_graph else " alone"
        kinds = f"language model{graph}"
        steps = f"{kinds}, strategy {printable(run.name)}"
    return {
        "12a": Answer("known", "patients divided into training, validation and test, see Cohort"),
        "12b": Answer("known", _entering(material)),
        "12c": Answer("known", f"{steps}; what is tuned is tuned on validation; see Settings and versions"),
        "12d": _clusters(material),
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
        "26": Answer("partly", f"{_limits(material)}; missing: further limits"),
        "27a": Answer(
            "partly", "unmapped codes are counted, and instances without a reference are named; missing: rules for use"
        ),
        "27b": Answer("partly", f"{_needed(material)} must be at hand; missing: the skill of users"),
    }
