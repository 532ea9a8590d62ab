from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from patients_like_me.errors import PlmError
from patients_like_me.graph import weighted_index, weighted_kernels
from patients_like_me.graph.people import PersonRule
from patients_like_me.graph.weighted_index import Strongest, WeightedIndex
from patients_like_me.graph.weighted_rows import WeightedRows, idf_cosine, idf_weights


def matrix_of(rows: WeightedRows) -> csr_matrix:
    return csr_matrix((rows.weights.astype(np.float64), rows.codes, rows.indptr), (len(rows), rows.number_of_codes))


def random_rows(
    seed: int, number: int, codes: int, *, size: float = 6, weights: str = "random", skew: float = 4
) -> WeightedRows:
    generator = np.random.default_rng(seed)
    popularity = np.exp(-skew * np.arange(codes) / codes)
    sizes = generator.poisson(size, number)
    # A code that is drawn twice in a row gets the sum of both weights.
    names = generator.choice(codes, sizes.sum(), p=popularity / popularity.sum())
    values = {
        "random": generator.random(len(names)),
        "equal": np.ones(len(names)),
        "with zeros": generator.integers(0, 3, len(names)) / 2,
        "of all sizes": 10.0 ** generator.integers(-12, 6, len(names)),
    }[weights]
    return WeightedRows.of(np.concatenate([[0], np.cumsum(sizes)]), names, values, number_of_codes=codes)


def people_of(generator: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sexes and ages, some of them not recorded."""
    ages = generator.integers(0, 100, number)
    return generator.integers(-1, 2, number), np.where(ages < 5, -1, ages)


def plain_strongest(
    bank: WeightedRows, queries: WeightedRows, k: int, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rank all pairs: similarity in single precision, then the lower row."""
    product = (matrix_of(queries) @ matrix_of(bank).T).toarray().astype(np.float32)
    neighbors, similarities = np.full((len(queries), k), -1), np.zeros((len(queries), k), np.float32)
    for row, values in enumerate(np.where(allowed, product, 0)):
        order = np.lexsort([np.arange(len(values)), -values])
        order = order[values[order] > 0][:k]
        neighbors[row, : len(order)], similarities[row, : len(order)] = order, values[order]
    return neighbors, similarities


def assert_same(found: Strongest, neighbors: np.ndarray, similarities: np.ndarray) -> None:
    """The plain product may round its last digit otherwise; then the order of near equals is open."""
    np.testing.assert_allclose(found.similarities, similarities, rtol=3e-7)
    different = found.neighbors != neighbors
    assert (found.neighbors >= 0).tolist() == (neighbors >= 0).tolist()
    for row in np.flatnonzero(different.any(axis=1)):
        places = np.flatnonzero(different[row])
        gaps = np.abs(np.subtract.outer(similarities[row, places], similarities[row]))
        gaps[np.arange(len(places)), places] = np.inf
        last = similarities.shape[1] - 1
        near = (gaps <= 3e-7 * similarities[row, places][:, None]).any(axis=1) | (places == last)
        assert near.all()


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(0, 300), st.integers(0, 12)),
    codes=st.sampled_from([1, 3, 40, 2000]),
    size=st.sampled_from([0.5, 6, 60]),
    weights=st.sampled_from(["random", "equal", "with zeros", "of all sizes"]),
    k=st.sampled_from([1, 2, 7, 400]),
    persons=st.sampled_from([None, 1, 4, 1000]),
    sites=st.sampled_from([None, 1, 3]),
    rule=st.sampled_from([None, PersonRule(same_sex=True), PersonRule(True, 10)]),
    frequent=st.sampled_from([0.0, 0.04, 2.0]),
)
@settings(deadline=None, max_examples=150)
def test_the_strongest_are_those_of_the_plain_product(
    seed: int,
    sizes: tuple[int, int],
    codes: int,
    size: float,
    weights: str,
    k: int,
    persons: int | None,
    sites: int | None,
    rule: PersonRule | None,
    frequent: float,
) -> None:
    bank = random_rows(seed, sizes[0], codes, size=size, weights=weights)
    queries = random_rows(seed + 1, sizes[1], codes, size=size, weights=weights)
    generator = np.random.default_rng(seed + 2)
    allowed = np.ones((len(queries), len(bank)), dtype=bool)
    given_bank, given_queries = {}, {}
    if persons is not None:
        given_bank["patients"] = generator.integers(persons, size=len(bank))
        given_queries["patients"] = generator.integers(persons, size=len(queries))
        allowed &= given_queries["patients"][:, None] != given_bank["patients"]
    if sites is not None:
        given_bank["groups"] = generator.integers(sites, size=len(bank))
        given_queries["groups"] = generator.integers(sites + 1, size=len(queries))
        allowed &= given_queries["groups"][:, None] == given_bank["groups"]
    if rule is not None:
        (sexes, ages), (own_sexes, own_ages) = people_of(generator, len(bank)), people_of(generator, len(queries))
        given_bank["people"] = rule.bounds(sexes, ages)
        given_queries["people"] = rule.bounds(own_sexes, own_ages, reach=True)
        unknown = (own_sexes[:, None] < 0) | (sexes < 0)
        allowed &= unknown | (own_sexes[:, None] == sexes)
        if rule.max_age_difference is not None:
            unknown = (own_ages[:, None] < 0) | (ages < 0)
            allowed &= unknown | (abs(own_ages[:, None] - ages) <= rule.max_age_difference)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weighted_index, "_FREQUENT", frequent)
        patch.setattr(weighted_index, "_LARGEST_BLOCK", 128)
        found = WeightedIndex.build(bank, **given_bank).strongest(queries, k, **given_queries, threads=1)
    assert found.neighbors.shape == found.similarities.shape == (len(queries), k)
    assert_same(found, *plain_strongest(bank, queries, k, allowed))


@pytest.mark.parametrize("k", [1, 20, 150])
@pytest.mark.parametrize("codes", [30, 285, 20_000])
def test_guessed_thresholds_over_many_blocks_and_threads(k: int, codes: int) -> None:
    (rows,) = idf_cosine(random_rows(5, 6000, codes, size=15))
    patients = np.random.default_rng(0).integers(4000, size=len(rows))
    index = WeightedIndex.build(rows, patients=patients)
    work = np.zeros(3, dtype=np.int64)
    found = index.strongest(rows, k, patients=patients, threads=3, statistics=work)
    some = np.arange(0, len(rows), 40)
    allowed = patients[some][:, None] != patients
    expected = plain_strongest(rows, rows.taken(some), k, allowed)
    assert_same(Strongest(found.neighbors[some], found.similarities[some]), *expected)
    assert work[1] < 2 * k * len(rows) + 20 * len(rows)


def test_a_guess_that_is_too_high_is_searched_again() -> None:
    # All similar rows are in the first columns of the index: the sample promises far more than there is.
    number = 4000
    bare = WeightedIndex.build(random_rows(0, number, 5))
    first = bare.bank.rows[:200]
    generator = np.random.default_rng(1)
    lists = [{0: float(value), 1: 1.0} for value in 0.01 * generator.random(number)]
    for row in first:
        lists[row][0] = 1.0 + float(generator.random())
    rows, query = WeightedRows.from_lists(lists), WeightedRows.from_lists([{0: 1.0}], number_of_codes=2)
    work = np.zeros(3, dtype=np.int64)
    found = WeightedIndex.build(rows).strongest(query, 300, statistics=work)
    assert work[2] == 1
    assert_same(found, *plain_strongest(rows, query, 300, np.ones((1, number), dtype=bool)))


def test_equal_similarities_come_in_the_order_of_the_rows() -> None:
    rows = WeightedRows.from_lists([{0: 1.0}] * 3000 + [{0: 2.0}] + [{1: 1.0}] * 1000)
    index = WeightedIndex.build(rows, patients=np.arange(len(rows)))
    found = index.strongest(WeightedRows.from_lists([{0: 1.0}], number_of_codes=2), 50)
    assert found.neighbors.tolist() == [[3000, *range(49)]]
    each = index.strongest_of_each(2)
    assert each.neighbors[[0, 1, 2999, 3000, 3001, 4000]].tolist() == [
        [3000, 1], [3000, 0], [3000, 0], [0, 1], [3002, 3003], [3001, 3002]
    ]  # fmt: skip


def test_the_first_columns_are_the_answer_for_a_smaller_k() -> None:
    rows = random_rows(8, 900, 60, weights="equal")
    index = WeightedIndex.build(rows)
    many, few = index.strongest(rows, 100), index.strongest(rows, 10)
    np.testing.assert_array_equal(many.neighbors[:, :10], few.neighbors)
    np.testing.assert_array_equal(many.similarities[:, :10], few.similarities)


def test_a_query_alone_gets_what_it_gets_among_others() -> None:
    rows = random_rows(9, 700, 80)
    index = WeightedIndex.build(rows)
    together = index.strongest(rows, 25, threads=2)
    for row in (0, 13, 699):
        alone = index.strongest(rows.taken(np.array([row])), 25)
        np.testing.assert_array_equal(alone.neighbors[0], together.neighbors[row])
        np.testing.assert_array_equal(alone.similarities[0], together.similarities[row])


def test_similarities_are_symmetric() -> None:
    (rows,) = idf_cosine(random_rows(3, 300, 50))
    found = WeightedIndex.build(rows, patients=np.arange(300)).strongest_of_each(299)
    dense = np.zeros((300, 300), dtype=np.float32)
    listed = found.neighbors >= 0
    dense[np.nonzero(listed)[0], found.neighbors[listed]] = found.similarities[listed]
    np.testing.assert_array_equal(dense, dense.T)


def test_without_excluded_patients_no_row_is_its_own_neighbor() -> None:
    rows = WeightedRows.from_lists([{0: 1.0}, {0: 1.0}, {0: 0.5}])
    index = WeightedIndex.build(rows, patients=[4, 4, 5], groups=[1, 1, 2])
    assert index.strongest_of_each(3).neighbors.tolist() == [[2, -1, -1], [2, -1, -1], [0, 1, -1]]
    assert index.strongest_of_each(3, exclude_same_patient=False).neighbors.tolist() == [
        [1, 2, -1], [0, 2, -1], [0, 1, -1]
    ]  # fmt: skip
    found = index.strongest_of_each(3, exclude_same_patient=False, within_groups=True)
    assert found.neighbors.tolist() == [[1, -1, -1], [0, -1, -1], [-1, -1, -1]]


def test_codes_that_the_bank_lacks_are_shared_with_nobody() -> None:
    index = WeightedIndex.build(WeightedRows.from_lists([{0: 1.0}], number_of_codes=3))
    queries = WeightedRows.from_lists([{0: 0.5, 7: 1.0}, {2: 1.0}, {9: 3.0}, {}])
    assert index.strongest(queries, 1).similarities.tolist() == [[0.5], [0], [0], [0]]


def test_weights_that_16_bits_cannot_tell_from_zero_are_found() -> None:
    # Every product vanishes in the bounds; the similarities are still above 0.
    rows = WeightedRows.from_lists([{0: 1e-9, 1: 1e-9}, {0: 1.0}, {1: 1.0}, {2: 1.0}])
    query = WeightedRows.from_lists([{0: 1e-9, 2: 1.0}])
    found = WeightedIndex.build(rows).strongest(query, 4)
    assert found.neighbors.tolist() == [[3, 1, 0, -1]]
    np.testing.assert_allclose(found.similarities, [[1, 1e-9, 1e-18, 0]], rtol=1e-6)


def test_very_many_codes_per_row() -> None:
    generator = np.random.default_rng(2)
    dense = generator.random((60, 40_000)).astype(np.float32)
    rows = WeightedRows.of(np.arange(61) * 40_000, np.tile(np.arange(40_000), 60), dense.ravel())
    found = WeightedIndex.build(rows).strongest(rows, 5)
    expected = dense.astype(np.float64) @ dense.T.astype(np.float64)
    np.testing.assert_allclose(found.similarities, -np.sort(-expected, axis=1)[:, :5], rtol=1e-6)


def test_the_values_are_those_of_sparse_dot_topn() -> None:
    peer = pytest.importorskip("sparse_dot_topn")
    (rows,) = idf_cosine(random_rows(4, 5000, 285, size=22))
    matrix = matrix_of(rows).astype(np.float32)
    index = WeightedIndex.build(rows)
    found = index.strongest(rows, 33)
    theirs = peer.sp_matmul_topn(matrix, matrix.T.tocsr(), 33, n_threads=2, sort=True)
    counts = np.diff(theirs.indptr)
    table = np.zeros((len(rows), 33), dtype=np.float32)
    table[np.arange(33) < counts[:, None]] = theirs.data
    np.testing.assert_allclose(found.similarities, table, atol=1e-6)


def test_idf_weights_come_from_the_bank_alone() -> None:
    bank = random_rows(1, 200, 40, weights="equal")
    queries = random_rows(2, 50, 40, weights="equal")
    others = random_rows(3, 500, 40, weights="equal", size=20)
    weighted, asked, _ = idf_cosine(bank, queries, others)
    alone, asked_alone = idf_cosine(bank, queries)
    np.testing.assert_array_equal(weighted.weights, alone.weights)
    np.testing.assert_array_equal(asked.weights, asked_alone.weights)
    # Every query for itself: what else is evaluated moves nothing.
    for row in range(0, 50, 7):
        one = queries.taken(np.array([row]))
        np.testing.assert_array_equal(
            idf_cosine(bank, one)[1].weights, asked.weights[asked.indptr[row] : asked.indptr[row + 1]]
        )
    counts = np.asarray((matrix_of(bank) > 0).sum(axis=0)).ravel()
    np.testing.assert_allclose(idf_weights(bank), np.log(201 / (counts + 1)), rtol=1e-6)


def test_rows_of_length_one() -> None:
    (rows,) = idf_cosine(random_rows(6, 100, 30))
    lengths = np.sqrt(np.asarray(matrix_of(rows).power(2).sum(axis=1)).ravel())
    np.testing.assert_allclose(lengths[np.diff(rows.indptr) > 0], 1, rtol=1e-6)


def test_a_code_that_everybody_has_says_nothing() -> None:
    (rows,) = idf_cosine(WeightedRows.from_lists([{0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1}]))
    assert np.diff(rows.indptr).tolist() == [1, 1, 0]


@given(seed=st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_any_order_of_the_codes_gives_the_same_rows(seed: int) -> None:
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 8, 10)
    starts = np.concatenate([[0], np.cumsum(counts)])
    codes, weights = generator.integers(0, 6, starts[-1]), generator.integers(0, 4, starts[-1]).astype(np.float32)
    rows = WeightedRows.of(starts, codes, weights, number_of_codes=6)
    expected = csr_matrix((weights, codes, starts), (10, 6)).toarray()
    np.testing.assert_array_equal(matrix_of(rows).toarray(), expected)
    for row in range(10):
        assert (np.diff(rows.codes[rows.indptr[row] : rows.indptr[row + 1]]) > 0).all()
    assert (rows.weights > 0).all()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([0, 2], [0], [1.0]), "do not belong together"),
        (([0, 1], [0], [1.0, 2.0]), "do not belong together"),
        (([0, 1], [0], [-1.0]), "negative or not finite"),
        (([0, 1], [0], [np.nan]), "negative or not finite"),
        (([0, 2, 1, 2], [0, 1], [1.0, 1.0]), "a row end falls"),
        (([0, 1], [-1], [1.0]), "a code is outside"),
    ],
)
def test_rows_that_cannot_be(arrays: tuple[list[int], list[int], list[float]], message: str) -> None:
    with pytest.raises(PlmError, match=message):
        WeightedRows.of(*arrays)


def test_questions_that_cannot_be_answered() -> None:
    rows = WeightedRows.from_lists([{0: 1.0}])
    index = WeightedIndex.build(rows)
    with pytest.raises(PlmError, match="k=0"):
        index.strongest(rows, 0)
    with pytest.raises(PlmError, match="the index has none"):
        index.strongest(rows, 1, groups=[1])
    with pytest.raises(PlmError, match="the index has no groups"):
        index.strongest_of_each(1, within_groups=True)
    with pytest.raises(PlmError, match="patients has the shape"):
        index.strongest(rows, 1, patients=[1, 2])
    with pytest.raises(PlmError, match="one per code"):
        replace(rows, number_of_codes=5).times([1.0])


def test_progress_is_reported() -> None:
    rows, seen = random_rows(1, 600, 20), []
    WeightedIndex.build(rows).strongest(rows, 3, progress=lambda done, parts: seen.append((done, parts)))
    assert seen[-1][0] == seen[-1][1] == len(seen)


def test_keys_order_by_similarity_then_row() -> None:
    pairs = [(0.5, 3), (0.75, 9), (0.5, 1), (1e-30, 0), (2.0, 4_000_000_000)]
    keys = sorted(int(weighted_kernels.key_of(value, row)) for value, row in pairs)
    found = [
        (float(weighted_kernels.value_of(np.uint64(key))), int(weighted_kernels.row_of(np.uint64(key)))) for key in keys
    ]
    expected = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    assert found == [(float(np.float32(value)), row) for value, row in expected]
