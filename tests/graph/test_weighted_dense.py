from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.graph import dense_neighbors
from patients_like_me.graph.dense_neighbors import DenseIndex
from patients_like_me.graph.people import PersonRule, fitting


def plain_cosines(queries: np.ndarray, bank: np.ndarray) -> np.ndarray:
    def scaled(vectors: np.ndarray) -> np.ndarray:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32).astype(np.float64)

    return (scaled(queries) @ scaled(bank).T).astype(np.float32)


@given(
    seed=st.integers(0, 2**32 - 1),
    number=st.integers(0, 250),
    asked=st.integers(0, 10),
    width=st.sampled_from([1, 3, 17]),
    levels=st.sampled_from([2, 1000]),
    k=st.sampled_from([1, 5, 300]),
    persons=st.sampled_from([None, 1, 6]),
    sites=st.sampled_from([None, 3]),
    rule=st.sampled_from([None, PersonRule(True, 10)]),
)
@settings(deadline=None, max_examples=100)
def test_the_strongest_are_those_of_the_plain_product(
    seed: int,
    number: int,
    asked: int,
    width: int,
    levels: int,
    k: int,
    persons: int | None,
    sites: int | None,
    rule: PersonRule | None,
) -> None:
    generator = np.random.default_rng(seed)
    bank = generator.integers(-levels, levels + 1, (number, width)).astype(np.float32)
    queries = generator.integers(-levels, levels + 1, (asked, width)).astype(np.float32)
    cosines = plain_cosines(queries, bank)
    given_bank, given_queries = {}, {}
    if persons is not None:
        given_bank["patients"] = generator.integers(persons, size=number)
        given_queries["patients"] = generator.integers(persons, size=asked)
        cosines[given_queries["patients"][:, None] == given_bank["patients"]] = 0
    if sites is not None:
        given_bank["groups"] = generator.integers(sites, size=number)
        given_queries["groups"] = generator.integers(sites + 1, size=asked)
        cosines[given_queries["groups"][:, None] != given_bank["groups"]] = 0
    if rule is not None:
        given_bank["people"] = rule.bounds(generator.integers(-1, 2, number), generator.integers(40, 80, number))
        given_queries["people"] = rule.bounds(
            generator.integers(-1, 2, asked), generator.integers(40, 80, asked), reach=True
        )
        cosines[~fitting(given_queries["people"][:, None], given_bank["people"])] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_neighbors, "_ROWS_AT_ONCE", 64)
        found = DenseIndex.build(bank, **given_bank).strongest(queries, k, **given_queries, threads=1)
    best = np.zeros((asked, k), dtype=np.float32)
    best[:, : min(k, number)] = -np.sort(-np.maximum(cosines, 0), axis=1)[:, :k]
    # A cosine of 0 may come out as a rounding error above it.
    np.testing.assert_allclose(found.similarities, best, atol=2e-7)
    listed = found.neighbors >= 0
    np.testing.assert_array_equal(listed, found.similarities > 0)
    rows = np.nonzero(listed)[0]
    np.testing.assert_allclose(found.similarities[listed], cosines[rows, found.neighbors[listed]], atol=2e-7)
    equal = (np.diff(found.similarities, axis=1) == 0) & listed[:, 1:]
    assert (np.diff(found.neighbors, axis=1)[equal] > 0).all()


def test_equal_vectors_come_in_the_order_of_the_rows_wherever_they_are() -> None:
    generator = np.random.default_rng(0)
    one = generator.normal(size=384).astype(np.float32)
    bank = generator.normal(size=(9000, 384)).astype(np.float32)
    copies = np.sort(generator.choice(9000, 700, replace=False))
    bank[copies] = one
    found = DenseIndex.build(bank).strongest(one[None], 300)
    assert found.neighbors[0].tolist() == copies[:300].tolist()
    assert set(found.similarities[0].tolist()) == {float(found.similarities[0, 0])}


def test_threads_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    bank = generator.normal(size=(3000, 48)).astype(np.float32)
    index = DenseIndex.build(bank, patients=np.arange(3000) // 2)
    found = index.strongest_of_each(20, threads=2)
    monkeypatch.setattr(dense_neighbors, "_ROWS_AT_ONCE", 77)
    monkeypatch.setattr(dense_neighbors, "_QUERIES_AT_ONCE", 31)
    again = index.strongest_of_each(20, threads=1)
    np.testing.assert_array_equal(found.neighbors, again.neighbors)
    np.testing.assert_array_equal(found.similarities, again.similarities)
    assert not (found.neighbors // 2 == np.arange(3000)[:, None] // 2).any()


def test_questions_that_cannot_be_answered() -> None:
    index = DenseIndex.build([[1.0, 0.0]])
    with pytest.raises(PlmError, match="k=0"):
        index.strongest([[1.0, 0.0]], 0)
    with pytest.raises(PlmError, match="3 dimensions and the bank 2"):
        index.strongest([[1.0, 0.0, 0.0]], 1)
    with pytest.raises(PlmError, match="finite"):
        DenseIndex.build([[np.nan]])
    with pytest.raises(PlmError, match="the index has none"):
        index.strongest([[1.0, 0.0]], 1, groups=[0])
    with pytest.raises(PlmError, match="the index has no groups"):
        index.strongest_of_each(1, within_groups=True)
