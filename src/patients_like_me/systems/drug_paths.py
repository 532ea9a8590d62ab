"""What KEHGCN knows beside the records: codes as nodes, the edges of the metapaths, interactions, contraindications.

Typed triples of the user make all paths. Without them the path ``treat`` is a table of indications or co-occurrence in
training, and ``classification`` the groups of CCS and ATC.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from patients_like_me.files import digest_of_file
from patients_like_me.systems.code_trees import known_trees, tree_word
from patients_like_me.systems.drug_knowledge import INTERACTIONS, known_drugs
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.indications import read_indications
from patients_like_me.systems.metapaths import CONTRAINDICATED, RELATIONS, edges_of, paths_in, siblings
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.training_visits import TrainingVisits
from patients_like_me.systems.triples import code_entity, read_triples

#: In the order in which their nodes are numbered.
KINDS: Final = ("diagnosis", "procedure", "medication")


def known_paths(
    problem: Problem, settings: Any, vocabularies: Vocabularies, visits: TrainingVisits
) -> tuple[dict[str, Any], list[str]]:
    """Return nodes, edges of the paths and what is known about drugs, as plain data, with notes."""
    drugs = known_drugs(problem, settings, vocabularies)
    nodes = {kind: list(visits.codes[kind]) for kind in KINDS if kind in visits.codes}
    entities = [code_entity(kind, code) for kind, codes in nodes.items() for code in codes]
    number = {entity: at for at, entity in enumerate(entities)}
    notes, harmful, facts = list(drugs.notes), [], {**drugs.facts}
    labels = problem.instances.label_vocabulary
    if settings.triples is not None:
        triples = read_triples(settings.triples)
        edges = {
            name: edges_of(paths_in(triples, relations), number, both_ways=True)
            for name, relations in RELATIONS.items()
        }
        column = {code_entity("medication", code): at for at, code in enumerate(labels)}
        place = {code_entity("diagnosis", code): at for at, code in enumerate(vocabularies.codes["diagnosis"])}
        harmful = [
            (place[one], column[other])
            for one, other in paths_in(triples, (CONTRAINDICATED,))
            if one in place and other in column
        ]
        facts["triples_digest"] = digest_of_file(Path(settings.triples))
        told = f"{len(triples):,} triples, {len(harmful):,} contraindications among the codes"
        if harmful and INTERACTIONS in settings.without:
            told += ", which are not used: without interactions no set is corrected"
        notes.append(told)
    else:
        edges = {"treat": _treatments(problem, settings, visits, number, notes), "molecular": []}
        without = (*settings.without, tree_word("procedure"))
        trees = known_trees(vocabularies, without)
        notes += trees.notes
        groups = trees.facts["ancestors"]
        pairs = [pair for kind in groups for pair in siblings(groups[kind], kind)]
        edges["classification"] = edges_of(pairs, number, both_ways=False)
    notes.append("edges of the paths: " + ", ".join(f"{name} {len(found):,}" for name, found in edges.items()))
    facts |= {
        "nodes": nodes,
        "edges": {name: [list(pair) for pair in found] for name, found in edges.items()},
        "drugs": [number[code_entity("medication", code)] for code in labels],
        "harmful": [list(pair) for pair in harmful],
        "rates": [float(rate) for rate in problem.rates],
    }
    return facts, notes


def _treatments(
    problem: Problem, settings: Any, visits: TrainingVisits, number: Mapping[str, int], notes: list[str]
) -> list[tuple[int, int]]:
    """Return the edges of the path 'treat' without typed triples."""
    if settings.indications is not None:
        names = problem.instances.cohort.names("diagnosis")
        triples, sentence = read_indications(settings.indications, names)
        notes.append(sentence)
        pairs = paths_in(triples, RELATIONS["treat"])
    else:
        partners = visits.partners("diagnosis", ("medication",), settings.co_occurring)
        pairs = [
            (code_entity("diagnosis", visits.codes["diagnosis"][at]), code_entity(kind, visits.codes[kind][place]))
            for at, row in enumerate(partners)
            for kind, place, _ in row
        ]
        notes.append("the path 'treat' is co-occurrence in training")
    return edges_of(pairs, number, both_ways=True)
