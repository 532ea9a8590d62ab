"""Where the triples of a knowledge graph come from: a user's file, a language model, hierarchies, or co-occurrence.

A language model is asked once per code, for facts about its name: no patient is in these prompts, and the answers are
kept on disk, so every later run finds them. What it says is written to ``triples.tsv`` of the run folder, which can be
read, corrected and handed over as a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, digest_of_file
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.records.cohort import KINDS, Kind
from patients_like_me.systems.code_trees import known_trees
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.knowledge_graph import names_of_groups, ontology_triples
from patients_like_me.systems.name_embeddings import is_wordless, names_of_codes
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.training_visits import TrainingVisits
from patients_like_me.systems.triples import COLUMNS, Triple, code_entity, read_triples

Source = Literal["file", "llm", "ontology", "co-occurrence"]
TRIPLES: Final = "triples.tsv"


@dataclass(frozen=True)
class KnownTriples:
    """Triples, the words for entities that are not codes, and what there is to keep and to tell about them."""

    triples: Sequence[Triple]
    names: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def words_of_entities(problem: Problem, vocabularies: Vocabularies, names: Mapping[str, str]) -> dict[str, str]:
    """Return what entities are called: the given names, and those of all codes."""
    words = dict(names)
    for kind in KINDS:
        of_kind = names_of_codes(problem.instances, kind, vocabularies.codes[kind])
        words |= {code_entity(kind, code): name for code, name in zip(vocabularies.codes[kind], of_kind, strict=True)}
    return words


def triples_of_file(path: str) -> KnownTriples:
    """Read a user's triples."""
    return KnownTriples(read_triples(path), facts={"triples_digest": digest_of_file(Path(path))})


def triples_of_ontology(
    problem: Problem, vocabularies: Vocabularies, co_occurring: int, without: Sequence[str] = ()
) -> KnownTriples:
    """Return hierarchies of codes, and co-occurrence in training."""
    trees = known_trees(vocabularies, without)
    triples = ontology_triples(TrainingVisits.of(problem, vocabularies), trees.facts["ancestors"], co_occurring)
    names = names_of_groups(trees.facts["groups"])
    return KnownTriples(triples, names, {"tables": trees.facts["tables"]}, trees.notes)


def triples_of_co_occurrence(problem: Problem, vocabularies: Vocabularies, co_occurring: int) -> KnownTriples:
    """Return which codes come together in training visits, and nothing else."""
    return KnownTriples(ontology_triples(TrainingVisits.of(problem, vocabularies), {}, co_occurring))


def triple_prompt(kind: Kind, name: str, most: int) -> str:
    """Return the question about one code."""
    return (
        f"You write a medical knowledge graph. Name up to {most} facts about the {kind} '{name}': causes, symptoms, "
        "treatments, risks, related conditions and drugs.\n"
        "Write each fact on a line of its own, as: - relation | other concept\n"
        f"Known already:\n- is a | {kind}"
    )


def concepts(problem: Problem, vocabularies: Vocabularies) -> list[tuple[Kind, str, str]]:
    """Return kind, code and name of the codes that a language model can be asked about: those with a name."""
    return [
        (kind, code, name)
        for kind in KINDS
        for code, name in zip(
            vocabularies.codes[kind], names_of_codes(problem.instances, kind, vocabularies.codes[kind]), strict=True
        )
        if not is_wordless(name)
    ]


def triples_of_language_model(
    problem: Problem, run: RunContext, vocabularies: Vocabularies, client: LLMClient, most: int
) -> KnownTriples:
    """Ask a language model for facts about every code that has a name."""
    asked = concepts(problem, vocabularies)
    entity_of_name = {name.lower(): code_entity(kind, code) for kind, code, name in asked}
    found: list[Triple] = []
    silent = 0
    for number, (kind, code, name) in enumerate(asked, start=1):
        run.report(f"triples: code {number:,} of {len(asked):,}")
        facts = facts_in(client.complete(triple_prompt(kind, name, most)))[:most]
        silent += not facts
        own = code_entity(kind, code)
        for relation, other in facts:
            tail = entity_of_name.get(other.lower(), other)
            if tail != own:
                found.append(Triple(own, relation, tail))
    if not found:
        raise PlmError(
            f"the language model '{client.settings.name}' gave no triple about {len(asked):,} codes with a name",
            remedy="use a larger model, or give triples as a file",
        )
    triples = tuple(dict.fromkeys(found))
    if run.folder is not None:
        write_triples(run.folder / TRIPLES, triples)
    notes = [f"{len(triples):,} triples by {client.settings.name}; {silent:,} of {len(asked):,} codes without any"]
    return KnownTriples(triples, notes=notes)


def facts_in(answer: str) -> list[tuple[str, str]]:
    r"""Return relation and concept of the lines of an answer that have both.

    >>> facts_in("Sure!\n1. treated by | Loop diuretics.\n- causes|fatigue\n- no bar here")
    [('treated by', 'Loop diuretics'), ('causes', 'fatigue')]
    """
    found = []
    for line in re.split(r"[\n;]", answer):
        parts = [" ".join(part.split()).strip(" .*-") for part in line.split("|")]
        parts[0] = re.sub(r"^\d+[.)]\s*", "", parts[0])
        if len(parts) == 2 and all(parts) and len(line) < 200:
            found.append((parts[0], parts[1]))
    return found


def write_triples(path: Path, triples: Sequence[Triple]) -> None:
    """Write triples so that :func:`read_triples` reads them."""
    lines = ["\t".join(COLUMNS), *("\t".join(triple) for triple in triples)]
    with atomic_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
