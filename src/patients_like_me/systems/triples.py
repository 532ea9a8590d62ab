"""Triples of a knowledge graph, from a user's TSV file: head, relation and tail, one triple per line.

An entity that is a code is written with its kind, such as ``diagnosis:108`` or ``medication:A02B``; every other entity
is a text, such as ``loop diuretics`` or ``molecule:furosemide``. Whatever else makes triples (a language model, an
export) only has to return :class:`Triple` objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from patients_like_me.errors import PlmError

COLUMNS: Final = ("head", "relation", "tail")


class Triple(NamedTuple):
    """One statement of a knowledge graph."""

    head: str
    relation: str
    tail: str


def code_entity(kind: str, code: str) -> str:
    """Return how a code is written in triples.

    >>> code_entity("diagnosis", "108")
    'diagnosis:108'
    """
    return f"{kind}:{code}"


def read_triples(path: str | Path) -> tuple[Triple, ...]:
    """Read a TSV file with the header head, relation, tail; a line of another form is refused with its number."""
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PlmError(f"the triples '{file}' cannot be read ({error})", remedy="give a TSV file in UTF-8") from None
    header = tuple(name.strip().lower() for name in lines[0].split("\t")) if lines else ()
    if header != COLUMNS:
        raise PlmError(
            f"the first line of '{file}' is not a header of triples", remedy="write head, relation and tail, with tabs"
        )
    found = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) != len(COLUMNS) or not all(parts):
            raise PlmError(
                f"line {number} of '{file}' has {sum(map(bool, parts))} values, not a head, a relation and a tail",
                remedy="separate the three by tabs",
            )
        found.append(Triple(*parts))
    if not found:
        raise PlmError(f"'{file}' has no triple", remedy="give a file with triples")
    return tuple(dict.fromkeys(found))


def touching_codes(triples: Iterable[Triple], known: set[str], hops: int) -> tuple[Triple, ...]:
    """Return the triples within some hops of known entities, in their order; others cannot inform any record.

    >>> chain = [Triple("diagnosis:1", "is", "a"), Triple("a", "is", "b"), Triple("b", "is", "c")]
    >>> [triple.tail for triple in touching_codes(chain, {"diagnosis:1"}, hops=2)]
    ['a', 'b']
    """
    given, reached, kept = list(triples), set(known), set[Triple]()
    for _ in range(hops):
        near = {triple for triple in given if triple.head in reached or triple.tail in reached}
        kept |= near
        reached |= {end for triple in near for end in (triple.head, triple.tail)}
    return tuple(triple for triple in given if triple in kept)
