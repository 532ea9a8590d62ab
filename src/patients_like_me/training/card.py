"""The model card: what was trained, on what, how well, and what it must not be used for."""

from __future__ import annotations

from typing import Any

from patients_like_me.tasks.instances import Instances


def model_card(about: dict[str, Any], instances: Instances) -> str:
    """Return the card of a finished run as Markdown; it holds counts and scores, no patient's data."""
    identity = about["identity"]
    settings, task = identity["settings"], instances.task
    scores = "\n".join(
        f"| {name} | {_shown(about['scores'].get('validation', {}).get(name))} | "
        f"{_shown(about['scores'].get('test', {}).get(name))} |"
        for name in task.metrics
    )
    counts = ", ".join(f"{number:,} {split}" for split, number in about["instances"].items())
    known = (
        "only what was known at prediction time"
        if identity["task_settings"]["inputs"] == "known"
        else ("retrospective: codes of the current visit as in the paper")
    )
    graph = about["graph"]
    references = (
        "none: the language model's own head predicts"
        if graph is None
        else f"{settings['graph']['references']} mode, tau {settings['graph']['tau']}, {graph['edges']:,} edges"
    )
    return f"""# {task.name}, {settings["strategy"]}

{task.title.capitalize()} Trained by Patients-like-me {identity["version"]}.

- **Label:** {task.label}
- **Inputs:** {known}; predicted at {task.predicted_at}
- **Backbone:** {settings["backbone"]["name"]}; strategy {settings["strategy"]}, seed {settings["seed"]}
- **References:** {references}
- **Instances:** {counts}
- **Training:** {about["epochs"]} epochs, best {about["best_epoch"]}, {about["seconds"]:.0f} s
- **Peak memory:** {about["peak_gib"]:.2f} GiB

| metric | validation | test |
| --- | ---: | ---: |
{scores}

Threshold of set metrics: 0.2. Cohort source: {instances.cohort.source} ({identity["cohort"][:16]}).
{_warning(instances)}
## Use

Research on the cohort's own population. Not a medical device; not validated for care. The folder `bank/` holds ids,
diagnoses and outcomes of the training patients: protect the run like the cohort itself.
"""


def _warning(instances: Instances) -> str:
    if not instances.cohort.about.get("synthetic"):
        return ""
    return "\nThe hospital is synthetic: these scores say nothing about accuracy on real patients.\n"


def _shown(value: float | None) -> str:
    return "not available" if value is None else f"{value:.4f}"
