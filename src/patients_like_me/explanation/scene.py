"""The scene of an explanation: the graph on which a split is predicted, with everything known about its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.explanation.network_pass import NetworkPass, pass_over
from patients_like_me.graph.bank import Bank
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import References
from patients_like_me.model.gcn import NodeNetwork
from patients_like_me.plain_text import counted
from patients_like_me.records.cohort import KINDS, Cohort, Kind
from patients_like_me.runs.run import Run
from patients_like_me.systems.keeping import load_fitted
from patients_like_me.systems.registry import find_system
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.task import Task

EvaluatedSplit = Literal["validation", "test"]


class GraphModel(Protocol):
    """What the fitted state of a system must offer so that its predictions from a patient graph are explained."""

    @property
    def bank(self) -> Bank:
        """The references, with their graph, embeddings and outcomes."""
        ...

    @property
    def graph_network(self) -> NodeNetwork:
        """The trained network, in evaluation mode."""
        ...

    def embed(self, instances: Instances, rows: Sequence[int] | None = None) -> Tensor:
        """Return the embeddings of instances, or of some of their rows, as in training."""
        ...

    def language_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits of a run that predicts without its graph."""
        ...


def graph_model_of(run: Run) -> GraphModel:
    """Return the trained model of a finished run; a system that does not predict from a patient graph is refused."""
    run.require_references()
    state: Any = load_fitted(find_system(run.identity.system), run).state if run.has_patient_graph else None
    if not all(hasattr(type(state), name) for name in ("graph_network", "embed", "language_logits")):
        raise PlmError(
            f"the references of the run '{run.folder}' ({run.identity.system}) are not those of a graph network",
            remedy="give a run of the system patients_like_me",
        )
    model: GraphModel = state
    return model


@dataclass(frozen=True, eq=False)
class Scene:
    """A split's graph, the embeddings of its nodes and the row of ``instances`` behind every node.

    In ``bank`` mode the training instances come first and the split's own are the last nodes; in ``cohort`` mode all
    nodes are the split's own. A run that predicts without a graph (``lm_only``) still gets a bank graph here, on which
    similar patients are found; ``uses_graph`` says that the prediction does not look at it. With ``newcomers`` the
    evaluated instances are new patients, who belong to no split; ``instances`` are then the training instances, in the
    order of the bank, followed by them. ``kinds_missing`` are the kinds of code that their records lack,
    None where only those of the run can tell.
    """

    run: Run
    instances: Instances
    split: EvaluatedSplit
    graph: PatientGraph
    embeddings: Tensor
    rows: Rows
    newcomers: bool = False
    kinds_missing: Mapping[Kind, str] | None = None

    @property
    def missing_kinds(self) -> Mapping[Kind, str]:
        """The kinds of code that the records of the explained patients cannot show, and why."""
        return self.run.cohort.missing_kinds if self.kinds_missing is None else self.kinds_missing

    @property
    def whose(self) -> str:
        """Whose instances are explained, in one word: of a split, or new."""
        return "new" if self.newcomers else self.split

    @property
    def task(self) -> Task:
        """The task that was learned."""
        return self.instances.task

    @property
    def cohort(self) -> Cohort:
        """The patients behind the instances."""
        return self.instances.cohort

    @property
    def bank_instances(self) -> pl.DataFrame:
        """The references of the bank: instance_id, subject_id, label (a list)."""
        return self.run.graph_bank.instances

    @property
    def mode(self) -> References:
        """Where references come from: the same split, or the bank of labelled training instances."""
        return self.graph.settings.references

    @property
    def uses_graph(self) -> bool:
        """Tell whether the prediction comes from the graph network."""
        return self.run.uses_graph

    @property
    def outcomes_known(self) -> bool:
        """Tell whether references are training instances, whose outcome the model was allowed to see."""
        return self.mode == "bank"

    @property
    def linked_in_words(self) -> str:
        """Which instances have a reference."""
        where = "training patients" if self.mode == "bank" else "other evaluated patients"
        shared = counted(self.graph.settings.tau, "diagnosis", "diagnoses")
        return f"that share at least {shared} with one of the {where}"

    def nobody_in_words(self, node: int) -> str:
        """Say why a node without references has none."""
        own, tau = int(self.graph.own_codes[node]), self.graph.settings.tau
        if own < tau:
            recorded = counted(own, "recorded diagnosis", "recorded diagnoses") if own else "no recorded diagnosis"
            return f"the patient has {recorded}; a similar patient must share at least {tau}"
        where = "earlier patient" if self.mode == "bank" else "other evaluated patient"
        shared = counted(tau, "diagnosis", "diagnoses")
        whom = self.graph.settings.person_rule.within_in_words()
        return f"no {where}{whom} shares at least {shared} with this patient"

    @cached_property
    def model(self) -> GraphModel:
        """The trained model of the run."""
        return graph_model_of(self.run)

    @cached_property
    def known(self) -> NetworkPass:
        """One pass of the graph network over the scene, from which importances and removals are computed."""
        return pass_over(self.model.graph_network, self.graph, self.embeddings)

    @cached_property
    def logits(self) -> Tensor:
        """The logits [N, outputs] of all nodes."""
        with torch.no_grad():
            if not self.uses_graph:
                return self.model.language_logits(self.embeddings)
            return torch.from_numpy(self.known.logits)

    def probabilities(self, node: int) -> npt.NDArray[np.float64]:
        """Return the probabilities [outputs] of one node."""
        found: npt.NDArray[np.float64] = self.probabilities_of(self.logits[node : node + 1].double().numpy())[0]
        return found

    def probabilities_of(self, logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
        """Return the probabilities [N, outputs] of logits, under the calibration of the run."""
        found = self.task.kind.probabilities(logits)
        return np.asarray(self.run.calibrated(found, newcomers=self.newcomers), dtype=np.float64)

    @cached_property
    def other_probabilities(self) -> npt.NDArray[np.float64]:
        """The probabilities [N, outputs] of the validation instances: whom a patient's risk is compared with."""
        frame = self.run.predictions(newcomers=self.newcomers).filter(pl.col("split") == "validation")
        width = self.task.kind.outputs(len(self.run.label_vocabulary))
        return np.array(frame["probabilities"].to_list(), dtype=np.float64).reshape(-1, width)

    def node_of_row(self, row: int) -> int:
        """Return the node of an instance of the split."""
        return len(self.rows) - len(self.own_rows) + int(np.searchsorted(self.own_rows, row))

    @cached_property
    def own_rows(self) -> Rows:
        """The instance rows of the split, in the order of the predictions."""
        return self.instances.rows_of(self.split)

    @cached_property
    def training_rows(self) -> Rows:
        """The instance rows of the training split, in the order of the bank."""
        return self.instances.rows_of("train")

    @property
    def training_labels(self) -> npt.NDArray[np.int64]:
        """The labels of all training instances."""
        return self.instances.labels[self.training_rows]

    @cached_property
    def subject_ids(self) -> list[str]:
        """The patient's own id of every instance row; a newcomer may be a patient of the bank who comes again."""
        patients = self.cohort.patients["subject_id"]
        return patients.gather(self.instances.frame["subject"]).to_list()

    @cached_property
    def directions(self) -> Tensor:
        """The embeddings scaled to length 1: their products are cosines."""
        return torch.nn.functional.normalize(self.embeddings.double(), dim=1)

    @property
    def compared(self) -> Any:
        """What the likeness of two nodes is computed from: rows of length 1, as an array or sparse."""
        return self.directions.numpy()

    def cosines_to(self, node: int) -> npt.NDArray[np.float64]:
        """Return the cosine of one node's embedding with that of every node."""
        return np.asarray((self.directions @ self.directions[node]).numpy(), dtype=np.float64)

    def cosines_to_training(self, node: int) -> npt.NDArray[np.float64]:
        """Return the cosine of one node's embedding with that of every training instance, in both modes."""
        directions = torch.nn.functional.normalize(torch.from_numpy(self.run.graph_bank.embeddings).double(), dim=1)
        return np.asarray((directions @ self.directions[node]).numpy(), dtype=np.float64)

    def share_farther(self, node: int, cosine: float) -> float:
        """Return the share of candidates (other patients that could be neighbours) with a lower cosine to a node."""
        patients = self.graph.sets.patients
        candidates = (patients != patients[node]) & ~self.graph.evaluated
        cosines = self.cosines_to(node)[candidates]
        return float(np.mean(cosines < cosine)) if len(cosines) else 0.0

    @cached_property
    def codes_seen(self) -> dict[Kind, pl.DataFrame]:
        """The codes of each kind that instances may see, one row per instance and code."""
        inputs = self.instances.inputs
        return {kind: inputs(kind).select("instance", "code").unique().sort("instance", "code") for kind in KINDS}

    def codes_of(self, row: int, kind: Kind) -> list[str]:
        """Return the codes of a kind that the instance of a row may see."""
        return self.codes_seen[kind].filter(pl.col("instance") == row)["code"].to_list()

    def has_codes(self, row: int) -> bool:
        """Tell whether the instance of a row may see any diagnosis, procedure or drug of its patient."""
        return any(self.codes_of(row, kind) for kind in KINDS)

    def have_codes_in_common(self, row: int, other: int) -> bool:
        """Tell whether two instances share a diagnosis, a procedure or a drug."""
        return any(set(self.codes_of(row, kind)) & set(self.codes_of(other, kind)) for kind in KINDS)

    def with_graph(self, graph: PatientGraph, embeddings: Tensor | None = None) -> Scene:
        """Return the same scene with other edges, and other embeddings where they are given."""
        return replace(self, graph=graph, embeddings=self.embeddings if embeddings is None else embeddings)


def evaluated_split(split: str) -> EvaluatedSplit:
    """Return the split if its predictions are explained; training patients are the references."""
    if split not in ("validation", "test"):
        raise PlmError(f"the split '{split}' is not explained", remedy="choose validation or test")
    return "validation" if split == "validation" else "test"


def set_scene(run: Run, split: str = "test") -> Scene:
    """Return the scene of a split of a finished run; one whose references bring their outcomes has its own kind."""
    run.require_references()
    evaluated = evaluated_split(split)
    # What is wrong with the run or its cohort is said now, not at the first use of its instances.
    _ = run.results
    if not run.evaluated(evaluated):
        raise PlmError(f"the split '{split}' of this run has no instances", remedy="choose the other split")
    if not run.has_patient_graph:
        from patients_like_me.explanation.reference_scene import set_reference_scene

        return set_reference_scene(run, evaluated)
    graph_model_of(run)
    if run.uses_graph:
        embeddings = torch.from_numpy(run.embeddings_of(evaluated))
        return Scene(run, run.everyone, evaluated, run.graph_of(evaluated), embeddings, run.node_rows(evaluated))
    rows = np.concatenate([run.everyone.rows_of("train"), run.rows_of(evaluated)])
    settings = run.graph_settings.model_copy(update={"references": "bank"})
    graph = build_graph(taken(run.everyone.diagnosis_sets, rows), settings)
    both = np.concatenate([run.graph_bank.embeddings, run.evaluated_embeddings[evaluated]])
    return Scene(run, run.everyone, evaluated, graph, torch.from_numpy(both), rows)


def chosen_row(scene: Scene, *, instance: str | None = None, example: int | None = None) -> int:
    """Return the row of the instance of a scene that was asked for."""
    return chosen_instance(scene.instances, scene.split, instance=instance, example=example, newcomers=scene.newcomers)


def chosen_instance(
    instances: Instances,
    split: EvaluatedSplit,
    *,
    instance: str | None = None,
    example: int | None = None,
    newcomers: bool = False,
) -> int:
    """Return the instance row that was asked for: by its visit id, or by its number (from 1) within the split."""
    own_rows = instances.rows_of(split)
    if (instance is None) == (example is None):
        raise PlmError(
            "one instance must be chosen",
            remedy=f"give either --instance and a visit id, or --example and a number from 1 to {len(own_rows)}",
        )
    if example is not None:
        where = "among the new patients" if newcomers else f"in the split '{split}'"
        if not 1 <= example <= len(own_rows):
            raise PlmError(
                f"there is no example {example} {where}",
                remedy=f"choose a number from 1 to {len(own_rows)}",
            )
        return int(own_rows[example - 1])
    ids = instances.frame["instance_id"]
    # A patient of the bank who comes again may bring a visit of the same id: the explained ones are looked at first.
    own = ids.gather(own_rows).index_of(instance)
    found = ids.index_of(instance) if own is None else int(own_rows[own])
    if found is None or (own is None and newcomers):
        raise PlmError(
            "no instance of this run has the visit id that was given"
            if not newcomers
            else "the visit id that was given is not that of a new patient's last visit",
            remedy="give the id of a visit that the task labels, or choose one with --example 1"
            if not newcomers
            else "give the id of a last visit, or choose one with --example 1",
        )
    if found not in own_rows:
        where = instances.splits[found]
        remedy = "choose another instance: training patients are the references" if where == "train" else None
        raise PlmError(
            f"the instance that was given is in the split '{where}', not in '{split}'",
            remedy=remedy or f"give --split {where}",
        )
    return int(found)


def example_number(scene: Scene, row: int) -> int:
    """Return the number by which a page names an instance: its place within the split, from 1."""
    return int(np.searchsorted(scene.own_rows, row)) + 1
