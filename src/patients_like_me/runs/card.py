"""The model card: what was trained, on what, how well, and what it must not be used for."""

from __future__ import annotations

from patients_like_me.errors import PlmError
from patients_like_me.runs.record import Results, RunRecord
from patients_like_me.tasks.instances import Instances

_EVALUATED = ("validation", "test")


def model_card(record: RunRecord, instances: Instances) -> str:
    """Return the card of a finished run as Markdown; it holds counts and scores, no patient's data."""
    if record.results is None:
        raise PlmError("a run that is not finished has no model card", remedy="finish it with plm train")
    results, identity, task = record.results, record.identity, instances.task
    lines = [
        *(("Warning", warning) for warning in results.warnings),
        ("System", f"{identity.system}: {record.system.description}"),
        ("Label", task.label),
        ("Inputs", _inputs(record, instances)),
        ("Instances", ", ".join(f"{number:,} {split}" for split, number in results.instances.items())),
        ("Settings", _settings(record)),
        *_choice(results, task.metrics[0]),
        *_references(record, results),
        ("Calibration", _calibration(record)),
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


def _calibration(record: RunRecord) -> str:
    if record.calibration is None:
        return "probabilities as the system says them"
    words = record.calibration.in_words()
    if record.calibration_as_newcomers is not None:
        words += f"; for new patients {record.calibration_as_newcomers.in_words()}"
    return words


def _references(record: RunRecord, results: Results) -> list[tuple[str, str]]:
    if not record.system.capabilities.references:
        return []
    if "graph" not in record.identity.settings:
        return [("References", "training patients in the bank, by their outcomes; see the notes")]
    if results.graph is None:
        return [("References", "none: each record is predicted alone")]
    graph = record.identity.settings["graph"]
    lines = [("References", f"{graph['references']} mode, tau {graph['tau']}, {results.graph.edges:,} edges")]
    shares = [
        f"{part.linked / results.instances[split]:.0%} of {split}"
        for split, part in results.graph.splits.items()
        if part.linked is not None and results.instances.get(split)
    ]
    return [*lines, ("Instances with a reference", ", ".join(shares))] if shares else lines


def _score_table(record: RunRecord, results: Results, instances: Instances) -> str:
    """Return the scores with their threshold and the cohort they were measured on."""
    ways = {"": results.scores}
    if results.scores_as_newcomers is not None:
        ways = {", within the split": results.scores, ", as new patients": results.scores_as_newcomers}
    columns = [(f"{split}{way}", scores.get(split, {})) for way, scores in ways.items() for split in _EVALUATED]
    rows = "\n".join(
        f"| {name} | {' | '.join(_shown(scores.get(name)) for _, scores in columns)} |"
        for name in instances.task.metrics
    )
    return f"""| metric | {" | ".join(title for title, _ in columns)} |
| --- |{" ---: |" * len(columns)}
{rows}
{_two_ways(results)}
{instances.task.kind.metrics_words}Cohort source: {instances.cohort.source} ({record.identity.cohort[:16]}).
{_warning(instances)}"""


def _two_ways(results: Results) -> str:
    if results.scores_as_newcomers is None:
        return ""
    return (
        "\nWithin the split: evaluated instances are linked to each other, as in the paper. As new patients: each is "
        "linked to the training instances alone, which is how `plm predict` predicts.\n"
    )


def _warning(instances: Instances) -> str:
    if not instances.cohort.about.get("synthetic"):
        return ""
    return "\nThe hospital is synthetic: these scores say nothing about accuracy on real patients.\n"


def _shown(value: float | None) -> str:
    return "not available" if value is None else f"{value:.4f}"
