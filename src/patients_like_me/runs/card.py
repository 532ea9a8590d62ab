"""The model card: what was trained, on what, how well, and what it must not be used for."""

from __future__ import annotations

from patients_like_me.errors import PlmError
from patients_like_me.runs.record import Results, RunRecord
from patients_like_me.tasks.instances import Instances


def model_card(record: RunRecord, instances: Instances) -> str:
    """Return the card of a finished run as Markdown; it holds counts and scores, no patient's data."""
    if record.results is None:
        raise PlmError("a run that is not finished has no model card", remedy="finish it with plm train")
    results, identity, task = record.results, record.identity, instances.task
    lines = [
        ("System", f"{identity.system}: {record.system.description}"),
        ("Label", task.label),
        ("Inputs", _inputs(record, instances)),
        ("Instances", ", ".join(f"{number:,} {split}" for split, number in results.instances.items())),
        ("Settings", _settings(record)),
        *_choice(results, task.metrics[0]),
        *_references(record, results),
        ("Time and peak memory", f"{results.seconds:.1f} s, {results.peak_gib:.2f} GiB"),
        *(("Note", note) for note in results.notes),
    ]
    listed = "\n".join(f"- **{name}:** {words}" for name, words in lines)
    uses = "It predicts new patients with `plm predict`." if record.system.capabilities.newcomers else ""
    return f"""# {task.name}, {record.system.title}

{task.title.capitalize()} Trained by Patients-like-me {identity.version}.

{listed}

{_score_table(record, results, instances)}
## Use

Research on the cohort's own population. {uses} Not a medical device; not validated for care.
The run folder holds ids and outcomes of patients: protect it like the cohort itself.
"""


def _inputs(record: RunRecord, instances: Instances) -> str:
    known = (
        "only what was known at prediction time"
        if record.identity.task_settings["inputs"] == "known"
        else "retrospective: codes of the current visit as in the paper"
    )
    return f"{known}; predicted at {instances.task.predicted_at}"


def _settings(record: RunRecord) -> str:
    """Return the settings in one line, nested ones by their names alone where they are many."""
    settings = record.identity.settings
    backbone = settings.get("backbone")
    plain = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    first = {"backbone": backbone["name"]} if isinstance(backbone, dict) else {}
    return ", ".join(f"{name} {value}" for name, value in {**first, **plain}.items())


def _choice(results: Results, metric: str) -> list[tuple[str, str]]:
    if results.epochs is not None:
        return [("Training", f"{results.epochs} epochs, the best was {results.best_epoch}")]
    chosen = ", ".join(f"{name} {value}" for name, value in results.chosen.items()) or "nothing to choose"
    tried = f" (best of {len(results.tried)} tried on validation by {metric})" if results.tried else ""
    return [("Chosen", chosen + tried)]


def _references(record: RunRecord, results: Results) -> list[tuple[str, str]]:
    if not record.system.capabilities.references:
        return []
    if "graph" not in record.identity.settings:
        return [("References", "training patients in the bank, by their outcomes; see the notes")]
    if results.graph is None:
        return [("References", "none: each record is predicted alone")]
    graph = record.identity.settings["graph"]
    return [("References", f"{graph['references']} mode, tau {graph['tau']}, {results.graph.edges:,} edges")]


def _score_table(record: RunRecord, results: Results, instances: Instances) -> str:
    """Return the scores with their threshold and the cohort they were measured on."""
    scores = "\n".join(
        f"| {name} | {_shown(results.scores.get('validation', {}).get(name))} | "
        f"{_shown(results.scores.get('test', {}).get(name))} |"
        for name in instances.task.metrics
    )
    return f"""| metric | validation | test |
| --- | ---: | ---: |
{scores}

Threshold of set metrics: 0.2. Cohort source: {instances.cohort.source} ({record.identity.cohort[:16]}).
{_warning(instances)}"""


def _warning(instances: Instances) -> str:
    if not instances.cohort.about.get("synthetic"):
        return ""
    return "\nThe hospital is synthetic: these scores say nothing about accuracy on real patients.\n"


def _shown(value: float | None) -> str:
    return "not available" if value is None else f"{value:.4f}"
