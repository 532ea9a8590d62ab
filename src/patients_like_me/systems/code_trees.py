"""The hierarchies of a cohort's codes: multi-level CCS where it is installed, ATC by prefixes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from patients_like_me.codes.hierarchy import Ancestors, HierarchyTable, atc_ancestors
from patients_like_me.errors import PlmError
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.visit_network import Knowledge, hash_of_tables

#: The table of each kind of code; the hierarchy of ATC is in the codes themselves.
TABLES: Final[dict[str, HierarchyTable]] = {"diagnosis": "ccs_multi_dx", "procedure": "ccs_multi_pr"}


def tree_word(kind: str) -> str:
    """Return how the hierarchy of a kind is called among the knowledge of a system."""
    return f"{kind}-hierarchy"


def known_trees(vocabularies: Vocabularies, without: Collection[str] = ()) -> Knowledge:
    """Return the ancestors of every code of the training instances, nearest first, by kind.

    A code that its hierarchy does not know has none; the notes count and name such codes. Records of which no code
    at all has an ancestor are refused: a system that lives on ancestors would be another one.
    """
    ancestors: dict[str, dict[str, list[str]]] = {}
    names: dict[str, dict[str, str]] = {}
    notes: list[str] = []
    for kind, codes in vocabularies.codes.items():
        if not codes or tree_word(kind) in without:
            continue
        found = _tree_of(kind, codes)
        ancestors[kind] = {code: list(above) for code, above in found.of.items()}
        names[kind] = {group: found.names.get(group, group) for above in found.of.values() for group in above}
        notes.append(found.sentence(kind))
    if ancestors and not any(ancestors.values()):
        raise PlmError(
            "no code of the training instances is in a hierarchy",
            remedy="use records with CCS categories or ATC-3 codes, or a system without hierarchies",
        )
    facts: dict[str, Any] = {"ancestors": ancestors, "groups": names, "tables": hash_of_tables(*TABLES.values())}
    return Knowledge(facts, tuple(notes))


def _tree_of(kind: str, codes: tuple[str, ...]) -> Ancestors:
    if kind not in TABLES:
        return atc_ancestors(codes)
    known = Ancestors.installed(TABLES[kind])
    if known is None:
        raise PlmError(
            f"the hierarchy of {kind} codes ({TABLES[kind]}) is not installed", remedy="see: plm codes status"
        )
    return known.for_codes(codes)
