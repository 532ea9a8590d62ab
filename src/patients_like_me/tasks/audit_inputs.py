"""The inputs of a task as single features: codes, their prefixes, the words of their names, fields and counts."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import DEMOGRAPHICS, KINDS, PLACES
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.kinds import BINARY

#: Instances that are looked at, evenly spread; more change nothing.
_LOOKED_AT: Final = 50_000
#: A feature that fewer instances have (or lack), or an outcome that fewer have, is left to chance.
FEWEST: Final = 20
_LONGEST_PREFIX: Final = 5
#: What is added to the name of a feature that the current visit alone has.
_NOW: Final = " of the current visit"
Numbers = npt.NDArray[np.float64]


def rows_looked_at(instances: Instances) -> npt.NDArray[np.int64]:
    """Return the rows of the instances that are looked at."""
    return np.unique(np.linspace(0, len(instances) - 1, min(len(instances), _LOOKED_AT)).astype(np.int64))


def targets_of(instances: Instances) -> Numbers:
    """Return 0 or 1 for each outcome of each instance [instances, outcomes]."""
    kind = instances.task.kind
    names = len(instances.label_vocabulary)
    return np.asarray(kind.targets(instances.labels, kind.outputs(names)), dtype=np.float64).reshape(len(instances), -1)


def outcome_named(instances: Instances, outcome: int) -> str:
    """Return the name of an outcome, a class or a code with its name; none where the label is yes or no."""
    if instances.task.kind is BINARY:
        return ""
    code = instances.label_vocabulary[outcome]
    name = instances.cohort.names(instances.task.label_codes).get(code) if instances.task.label_codes else None
    return printable(code if name in (None, code) else f"{code} ({name})")


def presence(
    instances: Instances, rows: npt.NDArray[np.int64], *, without: Container[tuple[str, str]] = ()
) -> tuple[Any, list[str]]:
    """Return a sparse 0/1 matrix [instances, features] of codes, prefixes and words of names, and the feature names.

    Codes ``without`` which the features are wanted, each with its kind, are in no prefix, word or visit either.
    """
    from scipy.sparse import csr_matrix, hstack

    number = pl.DataFrame({"instance": rows.astype(np.uint32), "row": np.arange(len(rows))})
    matrices, features = [], []
    for kind in KINDS:
        names = instances.cohort.names(kind)
        # The current visit by itself, too: what earlier visits have would hide it.
        for seen, where in (
            (instances.inputs(kind), ""),
            (instances.current_codes(kind), _NOW),
        ):
            pairs = seen.select("instance", "code").unique().join(number, on="instance")
            codes = sorted(code for code in pairs["code"].unique().to_list() if (kind, code) not in without)
            pairs = pairs.filter(pl.col("code").is_in(codes))
            forms = [list(_forms(kind, code, names.get(code))) for code in codes]
            column = {form: place for place, form in enumerate(sorted({form for of in forms for form in of}))}
            of_code = csr_matrix(
                (
                    np.ones(sum(map(len, forms)), dtype=np.float32),
                    (np.repeat(np.arange(len(codes)), [*map(len, forms)]), [column[f] for of in forms for f in of]),
                ),
                shape=(len(codes), len(column)),
            )
            place = pairs["code"].replace_strict(codes, np.arange(len(codes)), return_dtype=pl.Int64).to_numpy()
            of_row = csr_matrix(
                (np.ones(pairs.height, dtype=np.float32), (pairs["row"].to_numpy(), place)),
                shape=(len(rows), len(codes)),
            )
            present = of_row @ of_code
            present.data[:] = 1
            counts = np.asarray(present.sum(axis=0)).ravel()
            kept = np.flatnonzero((counts >= FEWEST) & (counts <= len(rows) - FEWEST))
            matrices.append(present[:, kept])
            in_order = list(column)
            features += [in_order[place] + where for place in kept.tolist()]
    return hstack(matrices, format="csr"), features


def codes_behind(instances: Instances, features: Iterable[str]) -> set[tuple[str, str]]:
    """Return the codes, each with its kind, that features of :func:`presence` stand for.

    With them come codes of any kind that are the same but for case and signs, or that bear the same name.
    """
    wanted = {feature.removesuffix(_NOW) for feature in features}
    found, written = set(), {}
    for kind in KINDS:
        names = instances.cohort.names(kind)
        for code in instances.inputs(kind)["code"].unique().to_list():
            written[kind, code] = {_plain(code), _plain(names.get(code) or code)}
            if wanted.intersection(_forms(kind, code, names.get(code))):
                found.add((kind, code))
    same = {text for each in found for text in written[each] if text}
    return {each for each, texts in written.items() if texts & same} | found


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.upper())


def _forms(kind: str, code: str, name: str | None) -> Iterator[str]:
    """Yield the features that a code stands for.

    >>> sorted(_forms("procedure", "c3", "Left heart"))
    ['procedure C*', 'procedure c3', "procedure named 'HEART'", "procedure named 'LEFT'"]
    """
    upper = code.upper().strip()
    yield f"{kind} {code}"
    for length in range(1, min(_LONGEST_PREFIX, len(upper) - 1) + 1):
        yield f"{kind} {upper[:length]}*"
    if name and name != code:
        for word in set(re.findall(r"\w{3,}", name.upper())):
            yield f"{kind} named '{word}'"


FIELDS: Final = (
    *DEMOGRAPHICS, *PLACES, "sex", "age", "last digit of the age", "number of earlier visits",
    "number of diagnoses", "number of procedures", "number of medications",
)  # fmt: skip


def fields_of(instances: Instances, rows: npt.NDArray[np.int64]) -> Iterator[tuple[str, pl.Series]]:
    """Yield every field and count of the instances with its name; values are text or numbers."""
    visits = instances.cohort.visits.join(
        instances.cohort.patients.select("subject", "sex"), on="subject", how="left", maintain_order="left"
    )
    frame = instances.frame[rows.tolist()].join(visits.drop("subject"), on="visit", how="left", maintain_order="left")
    for name in (*DEMOGRAPHICS, *PLACES, "sex"):
        yield name, frame[name].str.strip_chars().str.to_lowercase()
    yield "age", frame["age"]
    yield "last digit of the age", frame["age"] % 10
    yield "number of earlier visits", frame["visit"] - frame["first_visit"]
    wanted = frame.select("instance")
    for kind, plural in zip(KINDS, ("diagnoses", "procedures", "medications"), strict=True):
        counts = instances.inputs(kind).group_by("instance").len()
        counted = wanted.join(counts, on="instance", how="left", maintain_order="left")
        yield f"number of {plural}", counted["len"].fill_null(0)
