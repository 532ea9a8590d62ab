"""Choose tau on validation: for every candidate a graph network is fitted on the embeddings of one ``lm_only`` run.

That is the second stage of ``two_stage``, so it costs an M-step for each candidate and no language model. The choice is
made for each cohort, task, backbone and split, and holds for all rows that use the graph. Test patients take no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.jobs import Job
from patients_like_me.files import write_json


def tau_scores(run_folder: Path, taus: Sequence[int]) -> dict[int, float | None]:
    """Return the task's first metric on validation for every tau."""
    return {tau: _score_at(run_folder, tau) for tau in taus}


def best_tau(scores: Mapping[int, float | None]) -> int:
    """Return the tau with the best score; of equal ones the smallest, which has the most edges.

    >>> best_tau({4: 0.3, 2: 0.3, 8: 0.1, 12: None})
    2
    """
    known = {tau: score for tau, score in scores.items() if score is not None}
    if not known:
        raise PlmError(
            "tau cannot be chosen: the task's first metric is not available on validation",
            remedy="leave out --tune-tau, or use another split",
        )
    return max(known, key=lambda tau: (known[tau], -tau))


def write_choice(job: Job) -> None:
    """Choose tau on the finished run of a job and write the choice with all scores."""
    scores = tau_scores(job.folder, job.taus)
    content = {"tau": best_tau(scores), "validation": {str(tau): score for tau, score in scores.items()}}
    write_json(job.choice_file, content)


def _score_at(run_folder: Path, tau: int) -> float | None:
    import torch

    from patients_like_me.graph.build import build_graph
    from patients_like_me.runs.run import load_run
    from patients_like_me.systems.keeping import load_fitted
    from patients_like_me.systems.registry import find_system
    from patients_like_me.tasks.metrics import score
    from patients_like_me.tasks.task import Split
    from patients_like_me.training.data import graphs_of_splits, predicted
    from patients_like_me.training.vem import EmProblem, m_step

    run = load_run(run_folder)
    trained = load_fitted(find_system(run.identity.system), run).state
    task, model = run.instances.task, trained.model
    kind = task.kind
    used: tuple[Split, ...] = ("train", "validation")
    splits = {split: run.rows_of(split) for split in used}
    graph = build_graph(run.instances.diagnosis_sets, run.graph_settings.model_copy(update={"tau": tau}))
    graphs = graphs_of_splits(graph, splits)
    labels = {split: torch.from_numpy(run.instances.labels[rows]) for split, rows in splits.items()}
    embeddings, evaluated = torch.from_numpy(run.embeddings_of("validation")), len(splits["validation"])

    @torch.no_grad()
    def logits() -> torch.Tensor:
        found: torch.Tensor = model.graph_logits(embeddings, graphs["validation"].propagation)
        return found[-evaluated:]

    def validate() -> float:
        return -float(kind.loss(logits(), labels["validation"]).mean())

    problem = EmProblem(model, graphs["train"].propagation, labels["train"], kind, trained.settings)
    m_step(problem, torch.from_numpy(run.graph_bank.embeddings), validate, epoch=0)
    first = task.metrics[:1]
    return score(first, labels["validation"].numpy(), predicted(kind, logits()))[first[0]]
