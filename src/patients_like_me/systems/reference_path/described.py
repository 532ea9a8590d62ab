"""What is compared of instances: their codes, who and where they are, and which similarities say something of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.weighted_rows import WeightedRows
from patients_like_me.systems.reference_path.links import Array

#: Which features of the bag a similarity compares, by its name.
FEATURES_OF: Final[Mapping[str, Callable[[str], bool]]] = {
    "diagnoses": lambda feature: feature.startswith(("current diagnosis ", "earlier diagnosis ")),
    "current codes": lambda feature: feature.startswith("current "),
    "all codes": lambda feature: feature.startswith(
        ("current ", "earlier diagnosis ", "earlier procedure ", "earlier medication ")
    ),
    "whole bag": lambda feature: True,
    "earlier drugs": lambda feature: feature.startswith("earlier medication "),
}
EMBEDDING: Final = "embedding"
SHARED_DIAGNOSES: Final = "shared diagnoses"
#: Similarities that are also read within the site, where there are several sites.
WITHIN_SITE: Final = ("diagnoses", "all codes")
OF_SITE: Final = " within site"


@dataclass(frozen=True)
class Described:
    """What is compared of some instances: the bag's rows (CSR, 0/1), the embeddings, and who and where they are."""

    codes: Any
    subjects: Sequence[str]
    sites: Sequence[str | None]
    embeddings: Array | None = None
    #: What the fitted own path makes of them, by the name of the similarity that compares it.
    learned: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    #: Sex and age [N, 2], where references are chosen by them.
    people: npt.NDArray[np.int16] | None = None

    def __len__(self) -> int:
        return len(self.subjects)

    def rows(self, rows: npt.NDArray[np.int64]) -> Described:
        """Return some of the instances."""
        return Described(
            self.codes[rows],
            [self.subjects[row] for row in rows],
            [self.sites[row] for row in rows],
            None if self.embeddings is None else self.embeddings[rows],
            {name: values[rows] for name, values in self.learned.items()},
            None if self.people is None else self.people[rows],
        )

    def followed_by(self, other: Described) -> Described:
        """Return these instances and others of which the same is described."""
        from scipy.sparse import csr_array, vstack

        return Described(
            csr_array(vstack([self.codes, other.codes])),
            [*self.subjects, *other.subjects],
            [*self.sites, *other.sites],
            _both(self.embeddings, other.embeddings),
            {name: np.concatenate([values, other.learned[name]]) for name, values in self.learned.items()},
            _both(self.people, other.people),
        )


def _both(first: npt.NDArray[Any] | None, second: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    """Return both parts; what the first instances have, further ones need too."""
    if first is None:
        return None
    assert second is not None, "instances of a bank are described by the same things"
    return np.concatenate([first, second])


def feature_columns(name: str, features: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the columns of the bag that a similarity compares.

    >>> feature_columns("earlier drugs", ["age", "earlier medication A10A"]).tolist()
    [1]
    """
    chosen = FEATURES_OF[name]
    return np.array([place for place, feature in enumerate(features) if chosen(feature)], dtype=np.int64)


def similarities_of(wanted: Sequence[str], bank: Described, features: Sequence[str]) -> tuple[str, ...]:
    """Return which of the wanted similarities tell something about a bank, and the same within the site where it has.

    Left out are those without a code, and those that compare the same columns as an earlier one.
    """
    several_sites = len({site for site in bank.sites if site is not None}) > 1
    found: list[str] = []
    seen: set[tuple[int, ...]] = set()
    for name in wanted:
        if name in FEATURES_OF:
            columns = feature_columns(name, features)
            if not len(columns) or tuple(columns) in seen or not bank.codes[:, columns].nnz:
                continue
            seen.add(tuple(columns))
        elif name == SHARED_DIAGNOSES and not len(feature_columns("diagnoses", features)):
            continue
        found.append(name)
        if several_sites and name in WITHIN_SITE:
            found.append(name + OF_SITE)
    return tuple(found)


def sets_of_diagnoses(codes: Any, features: Sequence[str]) -> WeightedRows:
    """Return the distinct diagnoses of every instance, of the current visit or an earlier one, each with weight 1."""
    from scipy.sparse import csr_array

    columns = feature_columns("diagnoses", features)
    names = [features[column].split(" ", 2)[2] for column in columns]
    diagnoses = {name: number for number, name in enumerate(dict.fromkeys(names))}
    merged = csr_array(
        (np.ones(len(columns)), (np.arange(len(columns)), [diagnoses[name] for name in names])),
        shape=(len(columns), len(diagnoses)),
    )
    rows = csr_array(codes[:, columns] @ merged)
    return WeightedRows.of(rows.indptr, rows.indices, rows.data != 0, number_of_codes=len(diagnoses))
