"""What KARE looks up for a patient: summaries of communities of a knowledge graph, and similar training patients.

The library is made once, of training patients alone, and kept with the run: the communities and their summaries, and a
bank of the training records in words with their outcomes. Similar patients are, for each class, the nearest one of
the bank with that outcome, never the patient's own: the label of the patient who is looked up plays no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.records.cohort import KINDS
from patients_like_me.runs.predictions import ids_of
from patients_like_me.systems.community_retrieval import (
    RetrievalSettings,
    Retriever,
    communities_of,
    nearest_of_each_class,
    unit,
)
from patients_like_me.systems.contract import Arrays, RunContext
from patients_like_me.systems.features import VisitFeatures, Vocabularies
from patients_like_me.systems.knowledge_graph import KnowledgeGraph
from patients_like_me.systems.patient_context import PatientContext, contexts_of
from patients_like_me.systems.problem import Problem, only
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.task import Task

#: A summary is made of this many statements at most.
MOST_STATEMENTS: Final = 20
#: Instances that are looked up at once: a matrix of instances and nodes is in memory.
_ROWS_PER_BLOCK: Final = 2048


def summary_prompt(statements: Sequence[str], about: str) -> str:
    """Return the question for the summary of a community; no patient is in it."""
    return (
        f"Summarise these medical statements in at most three sentences, with what matters for {about}.\n"
        + "\n".join(f"- {statement}" for statement in statements)
    )


def outcome_words(task: Task, label: int) -> str:
    """Return what became of a patient with a label."""
    return (task.words.outcomes or task.classes)[label] if task.words.outcomes or task.classes else str(label)


@dataclass(frozen=True)
class Looked:
    """What was found for one instance: its record, similar patients with their outcomes, and summaries."""

    context: PatientContext
    similar: tuple[tuple[PatientContext, str], ...]
    summaries: tuple[str, ...]


@dataclass(frozen=True)
class Library:
    """The library as it is kept; ``facts`` is plain JSON."""

    facts: Mapping[str, Any]
    arrays: Arrays
    settings: RetrievalSettings
    shown: int

    @cached_property
    def retriever(self) -> Retriever:
        """The communities as a matrix."""
        facts, arrays = self.facts, self.arrays
        return Retriever.of(facts["communities"], facts["nodes"], arrays["summaries"], arrays["themes"], self.settings)

    @cached_property
    def bank(self) -> list[tuple[PatientContext, str]]:
        """The training records in words, with their outcomes."""
        return [(PatientContext(each[0], tuple(each[1])), each[2]) for each in self.facts["bank"]]

    def look_up(self, instances: Instances, client: LLMClient) -> list[Looked]:
        """Return what there is for each instance; its label is not looked at."""
        rows = np.arange(len(instances))
        blocks = [rows[first : first + _ROWS_PER_BLOCK] for first in range(0, len(rows), _ROWS_PER_BLOCK)]
        return [found for block in blocks for found in self._look_up(only(instances, block), client)]

    def _look_up(self, instances: Instances, client: LLMClient) -> list[Looked]:
        contexts = contexts_of(instances)
        vectors = unit(client.embed([context.text for context in contexts]).reshape(len(contexts), -1))
        people = ids_of(instances)["subject_id"].to_list()
        similar = nearest_of_each_class(
            vectors,
            people,
            np.asarray(self.arrays["bank"], dtype=np.float64),
            self.facts["bank_people"],
            np.asarray(self.arrays["bank_labels"]),
            self.shown,
        )
        last_visits, indirect = self.nodes_of(instances)
        found = []
        for row, context in enumerate(contexts):
            chosen = self.retriever.chosen(last_visits[row], indirect[row], vectors[row])
            found.append(
                Looked(
                    context,
                    tuple(self.bank[place] for place in similar[row]),
                    tuple(self.facts["summary_texts"][place] for place in chosen),
                )
            )
        return found

    def nodes_of(self, instances: Instances) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return for each instance the last visit of every node, and which nodes are next to those of the record."""
        vocabularies = Vocabularies.from_json(self.facts["vocabularies"])
        features = VisitFeatures.of(instances, vocabularies)
        last = np.zeros((len(instances), self.facts["nodes"]))
        for kind in KINDS:
            if kind not in self.facts["node_of_code"]:
                continue
            places, numbers, starts = features.codes[kind]
            rows = np.repeat(np.arange(len(instances)), np.diff(starts))
            nodes = np.array([0, *self.facts["node_of_code"][kind]])[numbers]
            np.maximum.at(last, (rows, nodes), places + 1.0)
        near = np.zeros_like(last, dtype=bool)
        edges = np.asarray(self.arrays["edges"])
        direct = last > 0
        for head, tail in edges.tolist():
            near[:, tail] |= direct[:, head]
        return last, near & ~direct


def themes_of(themes: Sequence[str], task: Task) -> tuple[str, ...]:
    """Return the words that a task is about: the given ones, else its own."""
    return tuple(dict.fromkeys(themes)) or (task.words.about, task.title)


def made_library(
    problem: Problem,
    run: RunContext,
    vocabularies: Vocabularies,
    graph: KnowledgeGraph,
    client: LLMClient,
    *,
    retrieval: RetrievalSettings,
    most_nodes: int,
    shown: int,
    themes: Sequence[str],
) -> Library:
    """Make the library of the training patients; the language model summarises communities, from names alone."""
    task = problem.instances.task
    pairs = [(int(head), int(tail)) for head, _, tail in graph.edges.tolist()]
    communities = communities_of(pairs, len(graph.nodes), most_nodes, run.seed)
    if not communities:
        raise PlmError("the knowledge graph has no edge to find communities by", remedy="give more triples")
    summaries = []
    for number, members in enumerate(communities, start=1):
        run.report(f"summaries: community {number:,} of {len(communities):,}")
        summaries.append(
            " ".join(client.complete(summary_prompt(statements(graph, members), task.words.about)).split())
        )
    training = only(problem.instances, problem.train)
    contexts = contexts_of(training)
    run.report(f"reading {len(contexts):,} training records")
    labels = problem.targets[:, 0].astype(np.int64) if problem.outputs == 1 else problem.targets.argmax(axis=1)
    return Library(
        {
            "vocabularies": vocabularies.as_json(),
            "nodes": len(graph.nodes),
            "node_of_code": {kind: list(nodes) for kind, nodes in graph.node_of_code.items()},
            "communities": [list(members) for members in communities],
            "summary_texts": summaries,
            "bank": [
                [context.person, list(context.visits), outcome_words(task, int(label))]
                for context, label in zip(contexts, labels, strict=True)
            ],
            "bank_people": ids_of(training)["subject_id"].to_list(),
        },
        {
            "edges": np.array(sorted(set(pairs)), dtype=np.int64).reshape(-1, 2),
            "summaries": client.embed(summaries),
            "themes": client.embed(themes_of(themes, task)),
            "bank": unit(client.embed([context.text for context in contexts])).astype(np.float32),
            "bank_labels": labels,
        },
        retrieval,
        shown,
    )


def statements(graph: KnowledgeGraph, members: Sequence[int]) -> list[str]:
    """Return the triples within a community in words, each pair of nodes once."""
    inside = set(members)
    found = [
        f"{graph.node_names[head]} {graph.relation_names[relation]} {graph.node_names[tail]}"
        for head, relation, tail in graph.edges.tolist()
        if head in inside and tail in inside and head < tail
    ]
    return found[:MOST_STATEMENTS] or [", ".join(graph.node_names[node] for node in members)]
