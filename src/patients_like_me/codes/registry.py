"""Code systems: one file each in ``codes/systems/``, and those of other installed packages.

A code system turns the codes of one system (ICD-9-CM, NDC, a drug's name) into the codes that a cohort keeps: CCS
categories for diagnoses and procedures, ATC-3 codes for medications, or the codes as they were given. An event table
names the system of its codes; ``map_codes`` does the rest. A file that holds ``CODE_SYSTEM`` adds a system; another
package adds one through the entry-point group ``patients_like_me.code_systems``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl

from patients_like_me.codes.coverage import UNMAPPED
from patients_like_me.errors import PlmError
from patients_like_me.parts import found_parts, in_few_words, is_ours, refuse_broken, say_left_out

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

Kind = Literal["diagnosis", "procedure", "medication"]
KINDS: Final[tuple[Kind, ...]] = ("diagnosis", "procedure", "medication")
AS_GIVEN: Final = "as given"
VOCABULARY_COLUMNS: Final = pl.Schema(
    {"kind": pl.String(), "code": pl.String(), "name": pl.String(), "chapter": pl.String()}
)
_ANSWER: Final = {"codes": pl.List(pl.String()), "way": pl.String()}

#: Takes a kind and distinct codes; returns one row for each, in their order: ``codes`` (list of text), ``way`` (text).
Mapper = Callable[[Kind, pl.Series, "CodeStore"], pl.DataFrame]


@dataclass(frozen=True)
class CodeSystem:
    """One code system.

    ``name`` is what an own table writes after the slash (``diagnosis/icd9``); ``titles`` is how reports call the system
    for each kind it serves. ``target`` names what its codes become; without one they are kept as given. ``names``
    returns the names (kind, code, name, chapter) of what it maps to. A system in ``default_for`` is meant where an own
    table names only the kind. The ``way`` that a mapper returns says how a code was mapped; ``unmapped`` means not at
    all, and the ways in ``set_apart`` that the row is outside what the map is for.
    """

    name: str
    titles: Mapping[Kind, str]
    mapper: Mapper
    target: str = ""
    names: Callable[[Kind], pl.DataFrame] | None = None
    default_for: tuple[Kind, ...] = ()
    set_apart: tuple[str, ...] = ()


@dataclass(frozen=True)
class SystemColumn:
    """A column that says, row by row, which system the code is of: ``systems`` gives the system of each value.

    Other values stop the reading, called ``title`` in the message; with ``refuse`` off their rows count as unmapped.
    """

    column: str
    systems: Mapping[Any, str]
    title: str = "code system"
    refuse: bool = True


#: Columns that hold codes, each with its system; the first that answers decides alone.
CodeColumns = Mapping[str, "str | SystemColumn"]


def all_code_systems() -> Mapping[str, CodeSystem]:
    """Return every code system by name.

    >>> {"icd9", "icd10", "ccs", "ndc", "rxnorm", "name", "atc", "own"} <= set(all_code_systems())
    True
    """
    return found_parts(
        CodeSystem,
        package="patients_like_me.codes.systems",
        constant="CODE_SYSTEM",
        group="patients_like_me.code_systems",
    )


def systems_of(kind: Kind) -> list[CodeSystem]:
    """Return the code systems of a kind, the default one first.

    >>> [system.name for system in systems_of("medication")]
    ['name', 'atc', 'atc_of_rxnorm', 'ndc', 'own', 'rxnorm', 'usual_name']
    """
    serving = sorted(
        (system for system in all_code_systems().values() if kind in system.titles), key=lambda system: system.name
    )
    default = _default_of(kind, serving)
    return sorted(serving, key=lambda system: (system is not default, system.name))


def _default_of(kind: Kind, serving: list[CodeSystem]) -> CodeSystem | None:
    """Return the default system of a kind: that of this package, which no other package replaces."""
    wanted = sorted(
        (system for system in serving if kind in system.default_for), key=lambda each: not is_ours(each.mapper)
    )
    for other in wanted[1:]:
        say_left_out(
            f"the code system '{other.name}' wants to be the default for a {kind}, which is '{wanted[0].name}'; "
            f"it is used only where it is named ({kind}/{other.name})"
        )
    return wanted[0] if wanted else None


def ways_set_apart() -> frozenset[str]:
    """Return the ways by which any code system sets rows apart.

    >>> sorted(ways_set_apart() & {"not_a_medicine", "drug_treatment"})
    ['drug_treatment', 'not_a_medicine']
    """
    return frozenset(way for system in all_code_systems().values() for way in system.set_apart)


def find_code_system(kind: Kind, name: str) -> CodeSystem:
    """Return a code system of a kind by name; an unknown one is refused with all that exist."""
    systems = all_code_systems()
    refuse_broken(systems, name)
    if name in systems and kind in systems[name].titles:
        return systems[name]
    known = ", ".join(system.name for system in systems_of(kind))
    raise PlmError(f"there is no code system '{name}' for a {kind}", remedy=f"choose one of {known}")


def systems_in(kind: Kind, columns: CodeColumns) -> list[CodeSystem]:
    """Return the systems that a table's code columns may use, each once."""
    names = [
        name
        for system in columns.values()
        for name in ([system] if isinstance(system, str) else system.systems.values())
    ]
    return [find_code_system(kind, name) for name in dict.fromkeys(names)]


def map_codes(kind: Kind, keys: pl.DataFrame, columns: CodeColumns, store: CodeStore) -> pl.DataFrame:
    """Add ``codes`` (sorted list), ``way`` and ``map`` (the name of the code map) to distinct keys.

    >>> import tempfile; from pathlib import Path; from patients_like_me.codes.store import CodeStore
    >>> keys = pl.DataFrame({"ndc": ["0", None], "drug": ["Lasix 40 mg", "Sterile Water"]})
    >>> store = CodeStore(Path(tempfile.mkdtemp()))
    >>> map_codes("medication", keys, {"ndc": "ndc", "drug": "name"}, store).select("codes", "way", "map").rows()[0]
    (['C03C'], 'name', 'medication NDC or name to ATC-3')
    """
    answers = [_answers(kind, keys, column, system, store) for column, system in columns.items()]
    codes, way = pl.lit([], dtype=_ANSWER["codes"]), pl.lit(UNMAPPED)
    for number in reversed(range(len(answers))):
        decides = (pl.col(f"way_{number}") != UNMAPPED).fill_null(False)
        codes = pl.when(decides).then(pl.col(f"codes_{number}").list.sort()).otherwise(codes)
        way = pl.when(decides).then(f"way_{number}").otherwise(way)
    titles = [pl.col(f"title_{number}") for number in range(len(answers))]
    title = pl.concat_str(pl.lit(f"{kind} "), pl.concat_str(titles, separator=" or "), pl.col("target"))
    joined = pl.concat(
        [answer.rename({name: f"{name}_{number}" for name in ("codes", "way", "title")}).drop("target")
         for number, answer in enumerate(answers)] + [answers[-1].select("target")],
        how="horizontal",
    )  # fmt: skip
    return keys.hstack(joined.select(codes.alias("codes"), way.alias("way"), title.alias("map")))


def _answers(kind: Kind, keys: pl.DataFrame, column: str, system: str | SystemColumn, store: CodeStore) -> pl.DataFrame:
    """Return ``codes, way, title, target`` of every key by one of its columns."""
    text = pl.col(column).cast(pl.String).str.strip_chars().alias("code")
    if isinstance(system, str):
        found = find_code_system(kind, system)
        given = keys.select(text)
        return given.join(
            _mapped(kind, found, given["code"], store), on="code", how="left", maintain_order="left"
        ).select("codes", "way", *_described(kind, found))
    given = keys.select(text, pl.col(system.column).alias("system")).with_row_index("row")
    parts = []
    for (value,), rows in given.group_by("system", maintain_order=True):
        if value in system.systems:
            found = find_code_system(kind, system.systems[value])
            mapped = rows.join(_mapped(kind, found, rows["code"], store), on="code", how="left")
            parts.append(mapped.select("row", "codes", "way", *_described(kind, found)))
        else:
            nothing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in _ANSWER.items()]
            title = pl.lit(f"{system.title} {'(blank)' if value is None else value}").alias("title")
            parts.append(rows.select("row", *nothing, title, pl.lit("").alias("target")))
    schema = {"row": pl.UInt32(), **_ANSWER, "title": pl.String(), "target": pl.String()}
    return pl.concat([pl.DataFrame(schema=schema), *parts]).sort("row").drop("row")


def _mapped(kind: Kind, system: CodeSystem, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    distinct = codes.drop_nulls().unique(maintain_order=True)
    distinct = distinct.filter(distinct != "")
    if distinct.is_empty():
        # Loading the tables of a system takes longer than having no codes of it.
        return pl.DataFrame(schema={**_ANSWER, "code": pl.String()})
    try:
        answer = system.mapper(kind, distinct, store)
    except Exception as error:
        if isinstance(error, PlmError) or is_ours(system.mapper):
            raise
        raise _wrong(system, f"cannot map the codes of a {kind} ({in_few_words(error)})") from error
    _refuse_wrong_answer(system, answer, len(distinct))
    return answer.select(pl.col(name).cast(dtype) for name, dtype in _ANSWER.items()).with_columns(
        distinct.alias("code")
    )


def _refuse_wrong_answer(system: CodeSystem, answer: Any, codes: int) -> None:
    """Refuse what a mapper must not answer; the empty answer of no code may be of any type."""
    wrong = ""
    if not isinstance(answer, pl.DataFrame) or not set(_ANSWER) <= set(answer.columns):
        wrong = f"does not answer with a frame of {' and '.join(_ANSWER)}"
    elif answer.height != codes:
        wrong = f"answered {answer.height:,} of {codes:,} codes"
    elif codes:
        wrong = _wrong_values(answer)
    if wrong:
        raise _wrong(system, wrong)


def _wrong_values(answer: pl.DataFrame) -> str:
    if not isinstance(answer.schema["codes"], pl.List):
        return "answered with a column 'codes' that does not hold lists"
    if answer.schema["codes"] not in (_ANSWER["codes"], pl.List(pl.Null)):
        return "answered with a column 'codes' whose lists do not hold text"
    if answer.schema["way"] not in (pl.String, pl.Null):
        return "answered with a column 'way' that is not text"
    mapped = answer.filter((pl.col("way") != UNMAPPED).fill_null(False))
    if (
        mapped["codes"].null_count()
        or answer.select(pl.col("codes").list.eval(pl.element().is_null()).list.any().any()).item()
    ):
        return "answered with missing codes"
    if mapped.select(pl.col("codes").list.explode().cast(pl.String).str.strip_chars().eq("").any()).item():
        return "answered with a blank code"
    return ""


def _wrong(system: CodeSystem, wrong: str) -> PlmError:
    return PlmError(f"the code system '{system.name}' {wrong}", remedy="correct its mapper; see docs/extend.md")


def _described(kind: Kind, system: CodeSystem) -> list[pl.Expr]:
    target = f" to {system.target}" if system.target else f" {AS_GIVEN}"
    return [pl.lit(system.titles[kind]).alias("title"), pl.lit(target).alias("target")]


def kept_as_given(codes: pl.Series, known: pl.Series | None = None) -> pl.DataFrame:
    """Answer with the codes themselves; where ``known`` is given, only with those it holds.

    >>> kept_as_given(pl.Series(["49", "x"]), pl.Series([True, False])).rows()
    [(['49'], 'as given'), ([], 'unmapped')]
    """
    frame = pl.DataFrame(
        {"code": codes, "known": True if known is None else known}, schema={"code": pl.String, "known": pl.Boolean}
    )
    return answered(frame, pl.concat_list("code"), pl.when("known").then(pl.lit(AS_GIVEN)))


def answered(frame: pl.DataFrame, codes: pl.Expr, way: pl.Expr) -> pl.DataFrame:
    """Return a mapper's answer: ``codes`` where there is a way, else an empty list and ``unmapped``."""
    empty = pl.lit([], dtype=_ANSWER["codes"])
    return frame.select(
        pl.when(way.is_not_null()).then(codes).otherwise(empty).alias("codes"), way.fill_null(UNMAPPED).alias("way")
    )
