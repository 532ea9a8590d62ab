"""What if: without a reference, with another tau, with or without a diagnosis, and what the prediction would be.

Nothing is estimated: the text of the changed patient is written and embedded again, the graph is linked again from the
diagnoses, and the trained network runs again. The network itself is not trained again, even where tau changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.explanation.references import Reference, references_of
from patients_like_me.explanation.scene import Scene
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import Kind
from patients_like_me.settings import checked
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.tasks.instances import Instances

#: The kinds of code that a what-if can change.
CHANGED_KINDS: Final[tuple[Kind, ...]] = ("diagnosis", "medication")


@dataclass(frozen=True)
class Change:
    """What is to be different: references to drop (by name), another tau, diagnoses or drugs to add or remove."""

    drop: tuple[str, ...] = ()
    tau: int | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    add_drugs: tuple[str, ...] = ()
    remove_drugs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.drop or self.tau is not None or self.changes_record)

    @property
    def changes_record(self) -> bool:
        """Tell whether the patient's own record is different."""
        return bool(self.add or self.remove or self.add_drugs or self.remove_drugs)

    def in_words(self, names: Mapping[str, str], drugs: Mapping[str, str] | None = None) -> str:
        """Return the change in words; ``names`` are those of the diagnoses, ``drugs`` those of the drugs.

        >>> Change(drop=("R3",), tau=5, add=("108",)).in_words({"108": "heart failure"})
        'without R3; tau 5; with the diagnosis 108 (heart failure)'
        """

        def named(codes: Sequence[str], known: Mapping[str, str] = names) -> str:
            both = [(printable(code), printable(known.get(code) or code)) for code in codes]
            return ", ".join(code if code == name else f"{code} ({name})" for code, name in both)

        parts = [f"without {', '.join(self.drop)}"] if self.drop else []
        parts += [f"tau {self.tau}"] if self.tau is not None else []
        parts += [f"with the diagnosis {named(self.add)}"] if self.add else []
        parts += [f"without the diagnosis {named(self.remove)}"] if self.remove else []
        parts += [f"with the drug {named(self.add_drugs, drugs or {})}"] if self.add_drugs else []
        parts += [f"without the drug {named(self.remove_drugs, drugs or {})}"] if self.remove_drugs else []
        return "; ".join(parts)


def changed_scene(scene: Scene, row: int, change: Change, named: Mapping[str, Reference]) -> Scene:
    """Return the scene after a change to the instance of a row; ``named`` are its references by their names."""
    node = scene.node_of_row(row)
    dropped = [named_reference(name, named) for name in change.drop]
    graph, embeddings = scene.graph, scene.embeddings
    settings = graph.settings
    if change.tau is not None:
        settings = checked(GraphSettings, **{**settings.model_dump(), "tau": change.tau})
    sets = graph.sets
    if change.changes_record:
        instances = changed_instances(scene.instances, row, change)
        seen = instances.inputs("diagnosis").filter(pl.col("instance") == row)["code"].unique().to_list()
        sets = with_other_set(sets, node, seen)
        embeddings = embeddings.clone()
        embeddings[node] = embedded_again(scene, instances, row)
    if settings != graph.settings or sets is not graph.sets:
        graph = linked_again(scene, sets, settings)
    if dropped:
        graph = without_edges(graph, node, [reference.node for reference in dropped])
    return scene.with_graph(graph, embeddings)


def linked_again(scene: Scene, sets: DiagnosisSets, settings: GraphSettings) -> PatientGraph:
    """Link other diagnosis sets, or with another tau, by the rule by which the scene was linked.

    Newcomers extend the bank, whose own rows follow the rule of the training even where that is another.
    """
    if not scene.newcomers:
        return build_graph(sets, settings)
    known = np.arange(len(scene.graph) - len(scene.own_rows))
    newcomers = taken(sets, np.arange(len(known), len(scene.graph)))
    if settings == scene.graph.settings:
        bank = scene.graph.sub_graph(known)
    else:
        rule = settings.model_copy(update={"references": scene.run.graph_settings.references})
        bank = build_graph(taken(sets, known), rule)
    return replace(bank, sets=taken(sets, known), settings=settings).extend(newcomers, patients="shared")


def without_edges(graph: PatientGraph, node: int, others: Sequence[int]) -> PatientGraph:
    """Return the graph without the edges between a node and some others, in both directions.

    >>> sets = DiagnosisSets.from_lists([["2"], ["2"], ["2"]], patients=[0, 1, 2])
    >>> without_edges(build_graph(sets, GraphSettings(tau=1)), 0, [2]).neighbors_of(2)[0].tolist()
    [1]
    """
    rows = np.repeat(np.arange(len(graph)), graph.degrees)
    columns = graph.neighbors
    gone = ((rows == node) & np.isin(columns, others)) | ((columns == node) & np.isin(rows, others))
    counts = np.bincount(rows[~gone], minlength=len(graph))
    return PatientGraph(
        graph.sets,
        graph.settings,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        columns[~gone],
        graph.weights[~gone],
    )


def changed_instances(instances: Instances, row: int, change: Change) -> Instances:
    """Return the instances with the record of one of them changed; only that row of the result means anything."""
    found = instances
    if change.add or change.remove:
        found = with_other_codes(found, row, "diagnosis", change.add, change.remove)
    if change.add_drugs or change.remove_drugs:
        found = with_other_codes(found, row, "medication", change.add_drugs, change.remove_drugs)
    return found


def with_other_codes(
    instances: Instances, row: int, kind: Kind, add: Sequence[str], remove: Sequence[str], known: Set[str] | None = None
) -> Instances:
    """Return the instances with other codes of a kind in the visits that one of them may see.

    A code is added to the current visit where the task sees that, else to the last visit that it sees; it is removed
    from all of them. ``known`` are the codes that can be added, by default those of the cohort. Only that one row of
    the result means anything.
    """
    what = {"medication": "drug"}.get(kind, kind)
    codes = instances.cohort.codes[kind]
    present = set(instances.inputs(kind).filter(pl.col("instance") == row)["code"].to_list())
    known = set(instances.cohort.names(kind)) if known is None else known
    for code in add:
        if code not in known:
            such = "the CCS number 108" if kind == "diagnosis" else "the ATC code C03C"
            raise PlmError(
                f"the cohort has no {what} '{printable(code)}'", remedy=f"give a code of its vocabulary, such as {such}"
            )
        if code in present:
            raise PlmError(f"the patient has the {what} '{printable(code)}' already", remedy="add another one")
    for code in remove:
        if code not in present:
            raise PlmError(
                f"the patient does not have the {what} '{printable(code)}', as far as the task sees",
                remedy="remove one that the page lists",
            )
    current = int(instances.frame["visit"][row])
    visits = instances.history.filter(pl.col("instance") == row)["visit"].to_list()
    if kind in instances.task.inputs_of_current_visit(instances.settings):
        visits.append(current)
    if add and not visits:
        raise PlmError(
            f"the task sees no visit of this patient to which a {what} could be added", remedy="choose a later visit"
        )
    kept = codes.filter(~(pl.col("visit").is_in(visits) & pl.col("code").is_in(list(remove))))
    added = pl.DataFrame(
        {"visit": visits[-1:] * len(add), "code": list(add), "time": [None] * len(add)}, schema=codes.schema
    )
    changed = pl.concat([kept, added]).sort("visit", "code", maintain_order=True)
    return replace(instances, cohort=replace(instances.cohort, codes={**instances.cohort.codes, kind: changed}))


def with_other_set(sets: DiagnosisSets, node: int, codes: Sequence[str]) -> DiagnosisSets:
    """Return diagnosis sets in which one node has other codes; codes that nobody had join the vocabulary.

    >>> sets = DiagnosisSets.from_lists([["2", "50"], ["50"]], patients=[0, 1])
    >>> [with_other_set(sets, 0, ["9", "2"]).of(node) for node in (0, 1)]
    [('2', '9'), ('50',)]
    """
    vocabulary = (*sets.vocabulary, *sorted(set(codes) - set(sets.vocabulary)))
    number_of = {code: number for number, code in enumerate(vocabulary)}
    row = np.array(sorted({number_of[code] for code in codes}), dtype=np.int32)
    first, last = int(sets.indptr[node]), int(sets.indptr[node + 1])
    indptr = sets.indptr.copy()
    indptr[node + 1 :] += len(row) - (last - first)
    return replace(
        sets,
        indptr=indptr,
        codes=np.concatenate([sets.codes[:first], row, sets.codes[last:]]),
        vocabulary=vocabulary,
    )


def embedded_again(scene: Scene, instances: Instances, row: int) -> Tensor:
    """Return the embedding of one instance, its prompt written and read by the backbone again."""
    return scene.model.embed(instances, [row])[0]


def new_names(
    scene: Scene, node: int, named: Mapping[str, Reference]
) -> tuple[dict[str, Reference], list[str], list[str]]:
    """Return the references after a change by name, and the names that left and joined; newcomers are J1, J2, ..."""
    name_of = {reference.row: name for name, reference in named.items()}
    after: dict[str, Reference] = {}
    joined: list[str] = []
    for reference in references_of(scene, node):
        name = name_of.get(reference.row)
        if name is None:
            name = f"J{len(joined) + 1}"
            joined.append(name)
        after[name] = reference
    return after, [name for name in named if name not in after], joined


def named_reference(name: str, named: Mapping[str, Reference]) -> Reference:
    """Return a reference by its name; one that is not there is refused with those that are."""
    found = named.get(name.upper())
    if found is None:
        raise PlmError(
            f"there is no reference '{printable(name)}'",
            remedy=f"choose one of {', '.join(named)}" if named else "this patient has no references",
        )
    return found
