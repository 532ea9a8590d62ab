"""The model card: what was trained, on what, how well, and what it must not be used for."""

from __future__ import annotations

from typing import Any

from patients_like_me.tasks.instances import Instances


def model_card(about: dict[str, Any], instances: Instances) -> str:
    """Return the card of a finished run as Markdown; it holds counts and scores, no patient's data."""
    identity = about["identity"]
    settings, task = identity["settings"], instances.task
    graph = about["graph"]
    references = (
        "none: the language model's own head predicts"
        if graph is None
        else f"{settings['graph']['references']} mode, tau {settings['graph']['tau']}, {graph['edges']:,} edges"
    )
    return f"""# {task.name}, {settings["strategy"]}

{task.title.capitalize()} Trained by Patients-like-me {identity["version"]}.

- **Label:** {task.label}
- **Inputs:** {_inputs(about, instances)}
- **Backbone:** {settings["backbone"]["name"]}; strategy {settings["strategy"]}, seed {settings["seed"]}
- **References:** {references}
- **Instances:** {_counts(about)}
- **Training:** {about["epochs"]} epochs, best {about["best_epoch"]}, {about["seconds"]:.0f} s
- **Peak memory:** {about["peak_gib"]:.2f} GiB

{_score_table(about, instances)}
## Use

Research on the cohort's own population. Not a medical device; not validated for care. The folder `bank/` holds ids,
diagnoses and outcomes of the training patients: protect the run like the cohort itself.
"""


def plain_card(about: dict[str, Any], instances: Instances, *, description: str, kept: str) -> str:
    """Return the card of a finished run of a plain baseline; ``kept`` says what is kept of the fitted model."""
    identity = about["identity"]
    settings, task = identity["settings"], instances.task
    tuned = ", ".join(f"{name} {value}" for name, value in about["tuned"].items()) or "nothing to choose"
    if about["tried"]:
        tuned += f" (best of {len(about['tried'])} tried on validation by {task.metrics[0]})"
    notes = "".join(f"- **Note:** {note}\n" for note in about["notes"])
    return f"""# {task.name}, {identity["model"]}

{task.title.capitalize()} A plain baseline, made by Patients-like-me {identity["version"]}.

- **Model:** {description}
- **Label:** {task.label}
- **Inputs:** {_inputs(about, instances)}
- **Chosen:** {tuned}
- **Settings:** {", ".join(f"{name} {value}" for name, value in settings.items())}
- **Instances:** {_counts(about)}
- **Time and peak memory:** {about["seconds"]:.1f} s, {about["peak_gib"]:.2f} GiB
- **Kept of the model:** {kept}
{notes}
{_score_table(about, instances)}
## Use

A mark that a trained model should pass. It shows no references and predicts no new patients. Not a medical device; not
validated for care. `predictions.parquet` holds patients' ids and outcomes: protect the run like the cohort itself.
"""


def _inputs(about: dict[str, Any], instances: Instances) -> str:
    known = (
        "only what was known at prediction time"
        if about["identity"]["task_settings"]["inputs"] == "known"
        else "retrospective: codes of the current visit as in the paper"
    )
    return f"{known}; predicted at {instances.task.predicted_at}"


def _counts(about: dict[str, Any]) -> str:
    return ", ".join(f"{number:,} {split}" for split, number in about["instances"].items())


def _score_table(about: dict[str, Any], instances: Instances) -> str:
    """Return the scores with their threshold and the cohort they were measured on."""
    scores = "\n".join(
        f"| {name} | {_shown(about['scores'].get('validation', {}).get(name))} | "
        f"{_shown(about['scores'].get('test', {}).get(name))} |"
        for name in instances.task.metrics
    )
    return f"""| metric | validation | test |
| --- | ---: | ---: |
{scores}

Threshold of set metrics: 0.2. Cohort source: {instances.cohort.source} ({about["identity"]["cohort"][:16]}).
{_warning(instances)}"""


def _warning(instances: Instances) -> str:
    if not instances.cohort.about.get("synthetic"):
        return ""
    return "\nThe hospital is synthetic: these scores say nothing about accuracy on real patients.\n"


def _shown(value: float | None) -> str:
    return "not available" if value is None else f"{value:.4f}"
