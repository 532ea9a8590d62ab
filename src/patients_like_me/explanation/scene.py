"""The scene of an explanation: the graph on which a split is predicted, with everything known about its nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.explanation.network_pass import NetworkPass, pass_over
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import References
from patients_like_me.records.cohort import Kind
from patients_like_me.tasks.instances import Instances
from patients_like_me.training.data import Rows

if TYPE_CHECKING:
    from patients_like_me.training.opened_run import OpenedRun

EvaluatedSplit = Literal["validation", "test"]


@dataclass(frozen=True, eq=False)
class Scene:
    """A split's graph, the embeddings of its nodes and the instance row behind every node.

    In ``bank`` mode the training instances come first and the split's own are the last nodes; in ``cohort`` mode all
    nodes are the split's own. A run that predicts without a graph (``lm_only``) still gets a bank graph here, on which
    similar patients are found; ``uses_graph`` says that the prediction does not look at it. With ``newcomers`` the
    evaluated instances are new patients, who belong to no split.
    """

    opened: OpenedRun
    split: EvaluatedSplit
    graph: PatientGraph
    embeddings: Tensor
    rows: Rows
    newcomers: bool = False

    @property
    def whose(self) -> str:
        """Whose instances are explained, in one word: of a split, or new."""
        return "new" if self.newcomers else self.split

    @property
    def mode(self) -> References:
        """Where references come from: the same split, or the bank of labelled training instances."""
        return self.graph.settings.references

    @property
    def uses_graph(self) -> bool:
        """Tell whether the prediction comes from the graph network."""
        return self.opened.settings.uses_graph

    @property
    def outcomes_known(self) -> bool:
        """Tell whether references are training instances, whose outcome the model was allowed to see."""
        return self.mode == "bank"

    @cached_property
    def known(self) -> NetworkPass:
        """One pass of the graph network over the scene, from which importances and removals are computed."""
        return pass_over(self.opened.graph_network, self.graph, self.embeddings)

    @cached_property
    def logits(self) -> Tensor:
        """The logits [N, outputs] of all nodes."""
        with torch.no_grad():
            if not self.uses_graph:
                return self.opened.model.language_logits(self.embeddings)
            return torch.from_numpy(self.known.logits)

    def probabilities(self, node: int) -> npt.NDArray[np.float64]:
        """Return the probabilities [outputs] of one node."""
        found: npt.NDArray[np.float64] = self.probabilities_of(self.logits[node : node + 1].double().numpy())[0]
        return found

    def probabilities_of(self, logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
        """Return the probabilities [N, outputs] of logits, under the calibration of the run."""
        found = self.opened.task.kind.probabilities(logits)
        return np.asarray(self.opened.run.calibrated(found, newcomers=self.newcomers), dtype=np.float64)

    @cached_property
    def other_probabilities(self) -> npt.NDArray[np.float64]:
        """The probabilities [N, outputs] of the validation instances: whom a patient's risk is compared with."""
        frame = self.opened.run.predictions(newcomers=self.newcomers).filter(pl.col("split") == "validation")
        width = self.opened.task.kind.outputs(len(self.opened.label_vocabulary))
        return np.array(frame["probabilities"].to_list(), dtype=np.float64).reshape(-1, width)

    def node_of_row(self, row: int) -> int:
        """Return the node of an instance of the split."""
        return len(self.rows) - len(self.own_rows) + int(np.searchsorted(self.own_rows, row))

    @cached_property
    def own_rows(self) -> Rows:
        """The instance rows of the split, in the order of the predictions."""
        return self.opened.rows_of(self.split)

    @cached_property
    def subject_ids(self) -> list[str]:
        """The patient's own id of every instance row; a newcomer may be a patient of the bank who comes again."""
        patients = self.opened.cohort.patients["subject_id"]
        return patients.gather(self.opened.instances.frame["subject"]).to_list()

    @cached_property
    def directions(self) -> Tensor:
        """The embeddings scaled to length 1: their products are cosines."""
        return torch.nn.functional.normalize(self.embeddings.double(), dim=1)

    def cosines_to(self, node: int) -> npt.NDArray[np.float64]:
        """Return the cosine of one node's embedding with that of every node."""
        return np.asarray((self.directions @ self.directions[node]).numpy(), dtype=np.float64)

    def cosines_to_training(self, node: int) -> npt.NDArray[np.float64]:
        """Return the cosine of one node's embedding with that of every training instance, in both modes."""
        directions = torch.nn.functional.normalize(self.opened.bank_embeddings.double(), dim=1)
        return np.asarray((directions @ self.directions[node]).numpy(), dtype=np.float64)

    @cached_property
    def codes_seen(self) -> dict[Kind, pl.DataFrame]:
        """The codes of each kind that instances may see, one row per instance and code."""
        kinds: tuple[Kind, ...] = ("diagnosis", "procedure", "medication")
        inputs = self.opened.instances.inputs
        return {kind: inputs(kind).select("instance", "code").unique().sort("instance", "code") for kind in kinds}

    def codes_of(self, row: int, kind: Kind) -> list[str]:
        """Return the codes of a kind that the instance of a row may see."""
        return self.codes_seen[kind].filter(pl.col("instance") == row)["code"].to_list()

    def with_graph(self, graph: PatientGraph, embeddings: Tensor | None = None) -> Scene:
        """Return the same scene with other edges, and other embeddings where they are given."""
        return replace(self, graph=graph, embeddings=self.embeddings if embeddings is None else embeddings)


def evaluated_split(split: str) -> EvaluatedSplit:
    """Return the split if its predictions are explained; training patients are the references."""
    if split not in ("validation", "test"):
        raise PlmError(f"the split '{split}' is not explained", remedy="choose validation or test")
    return "validation" if split == "validation" else "test"


def set_scene(opened: OpenedRun, split: str = "test") -> Scene:
    """Return the scene of a split of an opened run."""
    evaluated = evaluated_split(split)
    if not opened.evaluated(evaluated):
        raise PlmError(f"the split '{split}' of this run has no instances", remedy="choose the other split")
    if opened.settings.uses_graph:
        return Scene(
            opened, evaluated, opened.graph_of(evaluated), opened.embeddings_of(evaluated), opened.node_rows(evaluated)
        )
    rows = np.concatenate([opened.rows_of("train"), opened.rows_of(evaluated)])
    settings = opened.settings.graph.model_copy(update={"references": "bank"})
    graph = build_graph(taken(opened.instances.diagnosis_sets, rows), settings)
    # Whatever the settings say, a run without a graph keeps both parts of its embeddings apart.
    own = opened.embeddings_of(evaluated)[-opened.evaluated(evaluated) :]
    return Scene(opened, evaluated, graph, torch.cat([opened.bank_embeddings, own]), rows)


def chosen_row(scene: Scene, *, instance: str | None = None, example: int | None = None) -> int:
    """Return the row of the instance of a scene that was asked for."""
    return chosen_instance(
        scene.opened.instances, scene.split, instance=instance, example=example, newcomers=scene.newcomers
    )


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
