"""``patients_like_me``: a language model and a graph network over similar patients, under one of its strategies.

The training is in :mod:`patients_like_me.training`; this file says what the room needs to know about it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.bank import Bank, write_embeddings
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.runs.predictions import ids_of, listed_labels
from patients_like_me.runs.record import Capabilities, GraphSummary
from patients_like_me.runs.run import EMBEDDINGS, GRAPH, Run
from patients_like_me.systems.contract import Account, CostPlan, Fitted, Growth, Joining, RunContext, System
from patients_like_me.systems.problem import Logits, Problem, only
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.task import Split


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Train, or continue from a checkpoint; the best weights are kept."""
    import torch

    from patients_like_me.training.evaluation import embed_rows, split_logits
    from patients_like_me.training.loop import run_training
    from patients_like_me.training.preparation import prepare_training
    from patients_like_me.training.trained import TrainedModel

    settings = run.settings
    instances = problem.with_validation_labels()
    prepared = prepare_training(instances, settings, cache=run.cache, report=run.report, ranks=run.ranks)
    if run.ranks.size > 1:
        prepared.notes.append(f"trained by {run.ranks.size} processes; the memory is that of the first of them")
    for note in [*prepared.warnings, *prepared.notes]:
        run.report(note)
    run.begin()
    state, data = prepared.state, prepared.data
    checkpoint = run.checkpoint
    if checkpoint is not None and checkpoint.is_file():
        state.load(checkpoint)
        run.report(f"continuing after epoch {state.epoch}, batch {state.batch}")
    state.ranks.start_equal(state)

    def save() -> None:
        if checkpoint is not None:
            state.save(checkpoint)
            run.write_epochs(state.epochs)

    run_training(state, data, save=save, save_every=run.save_every, watcher=run.watcher)
    run.report("embedding all instances with the best weights")
    bank = embed_rows(state.model, data, data.train_rows, settings, ranks=state.ranks)
    embeddings: dict[str, Any] = {}
    logits = []
    splits: tuple[Split, ...] = ("validation", "test")
    for split in splits:
        if len(data.splits[split]):
            own = embed_rows(state.model, data, data.splits[split], settings, ranks=state.ranks)
            embeddings[split] = own.numpy()
            found = split_logits(state.model, data, split, own, through_graph=settings.uses_graph, bank=bank)
            logits.append(found.double().numpy())
    trained = TrainedModel.of(
        state.model, settings, _bank_of(instances, problem, prepared.graph, settings, bank.numpy())
    )
    as_newcomers = None
    if settings.uses_graph and settings.graph.references == "cohort":
        # Newcomers are predicted through the bank: what is predicted for them must have been scored.
        run.report("evaluating through the bank as well")
        own = torch.from_numpy(np.concatenate(list(embeddings.values())))
        linked = trained.bank.extended_graph(only(instances, problem.evaluated))
        as_newcomers = trained.linked_logits(linked, own).double().numpy()
    account = Account(
        notes=prepared.notes,
        warnings=prepared.warnings,
        epochs=state.epochs,
        best_epoch=state.best_epoch + 1,
        seconds=state.seconds,
        prompts=prepared.prompt_summary,
        graph=None if prepared.graph_summary is None else GraphSummary(**prepared.graph_summary),
    )
    return Fitted(
        settings,
        embeddings,
        account=account,
        state=trained,
        evaluated=np.concatenate(logits),
        as_newcomers=as_newcomers,
    )


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Return the logits of instances, each linked to the bank."""
    return predict_linked(fitted, instances)[0]


def predict_linked(fitted: Fitted, instances: Instances) -> tuple[Logits, npt.NDArray[np.int64]]:
    """Return the same with the number of neighbours that every instance has in the bank."""
    trained = fitted.state
    graph = trained.bank.extended_graph(instances)
    logits: Logits = trained.linked_logits(graph, trained.embed(instances)).double().numpy()
    return logits, graph.degrees[len(trained.bank.instances) :]


def save(fitted: Fitted, folder: Path) -> None:
    """Write weights and bank, and the embeddings of validation and test."""
    write_embeddings(folder / EMBEDDINGS, fitted.arrays)
    fitted.state.save(folder)


def load(run: Run) -> Fitted:
    """Open weights and bank of a finished run."""
    from patients_like_me.training.trained import TrainedModel

    trained = TrainedModel.load(run)
    return Fitted(trained.settings, state=trained)


def join(fitted: Fitted, instances: Instances) -> Joining:
    """Embed labelled instances as references, and predict them with the bank as it is."""
    trained = fitted.state
    embeddings = trained.embed(instances)
    graph = trained.bank.extended_graph(instances)
    logits: Logits = trained.linked_logits(graph, embeddings).double().numpy()
    kept = np.asarray(embeddings.numpy(), dtype=np.float32)
    nearest = _nearest(trained.bank, kept, ids_of(instances)["subject_id"].to_list())
    return Joining({"embeddings": kept}, logits, graph.degrees[len(trained.bank.instances) :], nearest)


def _nearest(bank: Bank, embeddings: Any, subjects: list[str]) -> npt.NDArray[np.float64]:
    """Return the cosine of every embedding with the nearest of another patient in the bank."""
    from patients_like_me.graph.dense_neighbors import DenseIndex

    numbers = {name: number for number, name in enumerate(dict.fromkeys(bank.instances["subject_id"].to_list()))}
    people = np.array([numbers[name] for name in bank.instances["subject_id"]], np.int64)
    index = DenseIndex.build(bank.embeddings, patients=people)
    own = np.array([numbers.get(name, -1) for name in subjects], np.int64)
    return index.strongest(embeddings, 1, patients=own).similarities[:, 0].astype(np.float64)


def evaluated_with_bank(fitted: Fitted, run: Run, problem: Problem) -> Logits:
    """Return the logits of validation and test with the bank of a run, from the embeddings that the run keeps."""
    import torch

    kept = [run.evaluated_embeddings[split] for split in ("validation", "test") if split in run.evaluated_embeddings]
    graph = fitted.state.bank.extended_graph(only(problem.instances, problem.evaluated))
    logits: Logits = fitted.state.linked_logits(graph, torch.from_numpy(np.concatenate(kept))).double().numpy()
    return logits


def save_graph(fitted: Fitted, folder: Path) -> None:
    """Write the patient graph of a whole bank."""
    fitted.state.bank.graph.save(folder / GRAPH)


def unfit(run: Run) -> str:
    """Say why the bank of a run cannot grow: evaluated instances that are linked to each other do not use it."""
    if run.graph_settings.references == "bank":
        return ""
    return "its references are those of the same split (graph.references=cohort), not those of the bank"


def plan(problem: Problem, settings: Any) -> CostPlan:
    """Estimate the cost from a few measured batches."""
    from patients_like_me.training.plan import estimate_training

    found = estimate_training(problem.with_validation_labels(), settings)
    return CostPlan(found.words, found.language_seconds_per_epoch + found.graph_seconds_per_epoch)


def _bank_of(
    instances: Instances, problem: Problem, graph: PatientGraph | None, settings: Any, embeddings: Any
) -> Bank:
    """Return the training instances as a bank; without a graph in the run (lm_only) one is built for references."""
    rows = problem.train
    of_bank = settings.graph.model_copy(update={"references": "bank"})
    if graph is None:
        found = build_graph(taken(instances.diagnosis_sets, rows), of_bank)
    else:
        part = graph.sub_graph(rows)
        found = PatientGraph(part.sets, of_bank, part.indptr, part.neighbors, part.weights)
    frame = ids_of(instances, rows).select("instance_id", "subject_id")
    return Bank(found, embeddings, frame.with_columns(listed_labels(instances.labels[rows])))


SYSTEM = System(
    name="patients_like_me",
    description="a language model and a graph network over similar patients, trained by one of its strategies",
    settings="patients_like_me.training.settings:TrainingSettings",
    preset_part="training",
    takes_unnamed_settings=True,
    without_graph={"strategy": "lm_only"},
    several_processes=True,
    title=lambda settings: str(settings.strategy),
    capabilities=Capabilities(random=True, epochs=True, references=True, newcomers=True),
    fit=fit,
    predict=predict,
    predict_linked=predict_linked,
    plan=plan,
    save=save,
    load=load,
    growth=Growth(join, evaluated_with_bank, save_graph, unfit),
    choices={"graph.tau": (1, 2, 3, 4, 6, 8, 12), "graph.max_neighbors": (16, 32, 64)},
)
