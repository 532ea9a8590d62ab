"""Measure the patient graph against sparse_dot_topn and scipy on a synthetic cohort, all in one run.

Run ``python benchmarks/graph.py`` (some minutes, nearly all of them the compared systems) or, for a smaller cohort,
``python benchmarks/graph.py --quick`` (under a minute). The last line is JSON.

What is measured
- ``seconds``: the whole ``build_graph`` (bit rows, all pairs, strongest 32 of each node, symmetric graph), the median
  of three runs after a first one that may compile. ``speedup_over_sparse_dot_topn`` divides one run of sparse_dot_topn
  by it. That run is given its best number of threads, found on a smaller cohort, and only finds the top 32 (33 with
  the node itself) of each row: it neither excludes a patient's other instances nor symmetrises.
- The result: for every row the weights of the strongest 32 must be the same numbers; which of equal ones is kept is
  left open. The weights of a sample of edges are counted again set by set.
- ``peak_gib``: the largest memory of a fresh process that loads the cohort and builds the graph, libraries included.
- ``newcomer_ms``: one unseen instance against all nodes as a bank, the median of many; beside it one call of
  sparse_dot_topn with the transposed bank ready.
- The bound: the kernel cannot be faster than its full adders (five instructions each) and comparisons at the rate at
  which this machine executes such instructions on registers, nor than its bit rows at the rate at which vectors come
  from the second-level cache. Both rates are measured here, on as many threads as the build uses. Columns that cannot
  reach a row's threshold are skipped and not counted.
- ``weighted_*``: the strongest 32 and 300 of each instance by IDF cosine with :class:`WeightedIndex` from the codes on,
  the median of three runs, against one run of sparse_dot_topn on the same weights; the smaller of the two ratios is
  ``weighted_speedup_over_sparse_dot_topn``. All values must agree to 1e-6. ``weighted_peak_gib`` is that of a fresh
  process that finds the strongest 300; ``weighted_newcomer_ms`` is one unseen instance, from its codes to its
  strongest 300, with the index ready, the median of many.
- How the time grows with the cohort, and the plain sparse product of scipy on a small cohort, time and memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _measure import close_with, machine, peak_gib
from scipy.sparse import csr_matrix

from patients_like_me.graph import GraphSettings, PatientGraph, build_graph
from patients_like_me.graph.adders import LANES
from patients_like_me.graph.build import PartRows, parts_of
from patients_like_me.graph.drawn_sets import CODES
from patients_like_me.graph.drawn_sets import drawn_sets as make_cohort
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.weighted_index import Strongest, WeightedIndex
from patients_like_me.graph.weighted_rows import WeightedRows, idf_cosine, idf_weights
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.workers import number_of_threads

TAU, KEEP = 8, 32
SETTINGS = GraphSettings(tau=TAU, max_neighbors=KEEP)
WEIGHTED_KEEPS = (32, 300)


def seconds_of(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long a call took, and its result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def matrix_of(sets: DiagnosisSets) -> csr_matrix:
    """Return the sets as a 0/1 matrix of the type with which the peer is fastest."""
    ones = np.ones(len(sets.codes), dtype=np.int32)
    indptr = sets.indptr.astype(np.int32)
    return csr_matrix((ones, sets.codes, indptr), shape=(len(sets), CODES))


def top_of_peer(matrix: csr_matrix, transposed: csr_matrix, threads: int) -> csr_matrix:
    """Ask sparse_dot_topn for the strongest 33 above 7 of each row, the row itself among them."""
    from sparse_dot_topn import sp_matmul_topn

    return sp_matmul_topn(matrix, transposed, KEEP + 1, threshold=TAU - 1, n_threads=threads, sort=False)


def sorted_weights(indptr: np.ndarray, weights: np.ndarray, width: int) -> np.ndarray:
    """Return the weights of every row in falling order, filled up with zeros."""
    counts = np.diff(indptr)
    table = np.zeros((len(counts), width), dtype=weights.dtype)
    table[np.arange(width) < counts[:, None]] = weights
    return np.sort(table, axis=1)[:, ::-1]


def check_equal(sets: DiagnosisSets, own: tuple[Any, Any, Any], peer: csr_matrix) -> None:
    """Compare the weights row by row; the peer also lists the row itself, whose weight is the largest possible."""
    sizes = np.diff(sets.indptr)
    theirs = sorted_weights(peer.indptr, peer.data, KEEP + 1)
    with_itself = sizes >= TAU
    assert (theirs[with_itself, 0] == sizes[with_itself]).all(), "a row's own weight is not its largest"
    theirs = np.where(with_itself[:, None], theirs[:, 1:], theirs[:, :-1])
    assert (sorted_weights(own[0], own[2], KEEP) == theirs).all(), "the strongest weights differ"


def check_sample(graph: PatientGraph) -> None:
    """Count the shared diagnoses of some edges again, set by set."""
    generator = np.random.default_rng(3)
    rows = np.repeat(np.arange(len(graph)), graph.degrees)
    for place in generator.integers(len(graph.neighbors), size=2000):
        ends = [set(graph.sets.of(int(node))) for node in (rows[place], graph.neighbors[place])]
        assert len(ends[0] & ends[1]) == graph.weights[place], "a weight is wrong"


def measure_rates(threads: int) -> tuple[float, float]:
    """Return this machine's vector instructions per second, and bytes per second from the second-level cache."""
    from numba import njit

    @njit(nogil=True)
    def add(first: Any, second: Any, third: Any, repeats: int) -> None:
        # Eight full adders in a row on registers; the compiler makes vectors of the loop over the words.
        for _ in range(repeats):
            for place in range(len(first)):
                a, b, c = first[place], second[place], third[place]
                a, b = a ^ b ^ c, (a & b) | (c & (a ^ b))
                b, c = a ^ b ^ c, (b & c) | (a & (b ^ c))
                c, a = a ^ b ^ c, (c & a) | (b & (c ^ a))
                a, b = a ^ b ^ c, (a & b) | (c & (a ^ b))
                b, c = a ^ b ^ c, (b & c) | (a & (b ^ c))
                c, a = a ^ b ^ c, (c & a) | (b & (c ^ a))
                a, b = a ^ b ^ c, (a & b) | (c & (a ^ b))
                b, c = a ^ b ^ c, (b & c) | (a & (b ^ c))
                first[place] = a ^ b ^ c

    @njit(nogil=True)
    def stream(table: Any, repeats: int) -> int:
        total = np.uint64(0)
        for _ in range(repeats):
            for place in range(len(table)):
                total ^= table[place]
            table[0] += np.uint64(1)
        return total

    words = np.random.default_rng(0).integers(0, 2**63, (3, 256)).astype(np.uint64)
    cached = np.ones(256 * 1024 // 8, dtype=np.uint64)

    def rate(function: Callable[[int], Any], repeats: int, work: float) -> float:
        function(1)
        best = 0.0
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(5):
                seconds, _ = seconds_of(lambda: list(pool.map(function, [repeats] * threads)))
                best = max(best, threads * repeats * work / seconds)
        return best

    instructions = 42 * words.shape[1] / LANES
    return (
        rate(lambda repeats: add(*words.copy(), repeats), 100_000, instructions),
        rate(lambda repeats: stream(cached.copy(), repeats), 4_000, cached.nbytes),
    )


def instructions_of(vectors: float, bit_rows: float, planes: float) -> float:
    """Return the least vector instructions for adding bit rows into planes and comparing them with a threshold."""
    return 5 * (bit_rows - planes) + 4 * planes - 3 * vectors


def measure_newcomers(graph: PatientGraph, number: int) -> dict[str, float]:
    """Link unseen instances one at a time; the same for the peer, with the transposed bank ready."""
    newcomers = make_cohort(number, seed=99)
    matrix, transposed = matrix_of(newcomers), matrix_of(graph.sets).T.tocsr()
    own, peer = [], []
    for place in range(number):
        one = taken(newcomers, np.array([place]))
        one = DiagnosisSets(one.indptr, one.codes, one.patients, (f"new {place}",), one.vocabulary)
        spent, links = seconds_of(lambda one=one: graph.link(one, patients="new"))
        own.append(spent)
        spent, found = seconds_of(lambda place=place: top_of_peer(matrix[place], transposed, 1))
        peer.append(spent)
        strongest = np.sort(found.data)[::-1][:KEEP]
        assert (np.sort(links.weights)[::-1] == strongest).all(), "a newcomer's weights differ"
    # The first call builds the bit rows of the bank: that is the warm-up.
    return {
        "newcomer_ms": round(1000 * float(np.median(own[1:])), 3),
        "newcomer_slowest_ms": round(1000 * max(own[1:]), 3),
        "newcomer_warm_up_ms": round(1000 * own[0], 1),
        "newcomer_ms_sparse_dot_topn": round(1000 * float(np.median(peer[1:])), 3),
    }


def bare_rows(sets: DiagnosisSets) -> WeightedRows:
    """Return the sets as rows of codes that all weigh 1."""
    return WeightedRows.of(sets.indptr, sets.codes, number_of_codes=CODES)


def strongest_weighted(sets: DiagnosisSets, keep: int) -> Strongest:
    """Weigh the sets, index them, and find the strongest of each."""
    (rows,) = idf_cosine(bare_rows(sets))
    return WeightedIndex.build(rows, patients=sets.patients).strongest_of_each(keep)


def check_weighted(found: Strongest, peer: csr_matrix, sizes: np.ndarray) -> None:
    """Compare the values row by row; the peer also lists the row itself, whose cosine is 1."""
    theirs = sorted_weights(peer.indptr, peer.data, found.similarities.shape[1] + 1)
    assert np.allclose(theirs[sizes > 0, 0], 1, atol=1e-6), "a row's cosine with itself is not 1"
    theirs = np.where((sizes > 0)[:, None], theirs[:, 1:], theirs[:, :-1])
    assert np.allclose(found.similarities, theirs, rtol=0, atol=1e-6), "the strongest cosines differ"


def measure_weighted(sets: DiagnosisSets, threads: int, newcomers: int) -> dict[str, Any]:
    """Compare the weighted overlaps with the peer, and time newcomers."""
    from sparse_dot_topn import sp_matmul_topn

    strongest_weighted(taken(sets, np.arange(500)), KEEP)
    bank = bare_rows(sets)
    weights, (rows,) = idf_weights(bank), idf_cosine(bank)
    matrix = csr_matrix((rows.weights, rows.codes, rows.indptr.astype(np.int32)), shape=(len(rows), CODES))
    transposed = matrix.T.tocsr()
    own, theirs = {}, {}
    for keep in WEIGHTED_KEEPS:
        runs = [seconds_of(lambda keep=keep: strongest_weighted(sets, keep)) for _ in range(3)]
        own[keep] = float(np.median([spent for spent, _ in runs]))
        found = runs[0][1]
        del runs
        theirs[keep], peer = seconds_of(
            lambda keep=keep: sp_matmul_topn(matrix, transposed, keep + 1, n_threads=threads, sort=False)
        )
        check_weighted(found, peer, np.diff(rows.indptr))
        print(
            f"IDF cosine, strongest {keep}: {own[keep]:.2f} s; sparse_dot_topn {theirs[keep]:.1f} s "
            f"({theirs[keep] / own[keep]:.1f} times as long), the same values"
        )
        del found, peer
    build_seconds, index = seconds_of(lambda: WeightedIndex.build(rows, patients=sets.patients))
    unseen, spent = bare_rows(make_cohort(newcomers, seed=99)), []
    for place in range(newcomers):
        one = unseen.taken(np.array([place]))
        seconds, _ = seconds_of(lambda one=one: index.strongest(one.times(weights).normalised(), max(WEIGHTED_KEEPS)))
        spent.append(seconds)
    return {
        "weighted_speedup_over_sparse_dot_topn": round(min(theirs[keep] / own[keep] for keep in WEIGHTED_KEEPS), 1),
        "weighted_seconds": {str(keep): round(own[keep], 3) for keep in WEIGHTED_KEEPS},
        "weighted_sparse_dot_topn_seconds": {str(keep): round(theirs[keep], 2) for keep in WEIGHTED_KEEPS},
        "weighted_index_seconds": round(build_seconds, 3),
        "weighted_newcomer_ms": round(1000 * float(np.median(spent)), 3),
        "weighted_newcomer_slowest_ms": round(1000 * max(spent), 3),
    }


def own_peak_gib() -> float:
    """Return the peak memory of this program; a parent's memory, which ``getrusage`` hands down, is not in it."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return peak_gib()
    line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**20


@contextmanager
def kept(*cohorts: DiagnosisSets) -> Iterator[list[Path]]:
    """Keep cohorts in files for fresh processes, in which drawing them must not count."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(len(sets)) for sets in cohorts]
        for sets, path in zip(cohorts, paths, strict=True):
            # Kept as a graph without edges, which is the way sets are saved.
            build_graph(sets, GraphSettings(tau=CODES + 1)).save(path)
        yield paths


def in_fresh_process(task: str, cohort: Path) -> dict[str, float]:
    """Run one task in a process of its own, so that nothing else counts into its memory."""
    command = [sys.executable, __file__, "--task", task, "--cohort", str(cohort)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(found.stdout.splitlines()[-1]))


def run_task(task: str, cohort: Path) -> None:
    """Do what a fresh process is asked for and print seconds and memory."""
    sets = PatientGraph.load(cohort).sets
    if task == "build":
        seconds, result = seconds_of(lambda: build_graph(sets, SETTINGS).edges)
    elif task == "weighted":
        seconds, result = seconds_of(lambda: int((strongest_weighted(sets, max(WEIGHTED_KEEPS)).neighbors >= 0).sum()))
    else:
        matrix = matrix_of(sets)
        seconds, result = seconds_of(lambda: int(((matrix @ matrix.T) >= TAU).nnz))
    close_with({"seconds": seconds, "result": result, "peak": own_peak_gib()})


def main() -> None:
    """Measure everything and print it, the last line as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller cohort, under a minute")
    parser.add_argument("--task", choices=["build", "weighted", "scipy"], help=argparse.SUPPRESS)
    parser.add_argument("--cohort", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task is not None:
        run_task(options.task, options.cohort)
    else:
        measure(quick=options.quick)


def measure(*, quick: bool) -> None:
    """Run all measurements."""
    instances, small = (12_000, 4_000) if quick else (139_000, 20_000)
    growth = [4_000, 8_000, 12_000, 24_000] if quick else [10_000, 20_000, 40_000, 80_000, 139_000, 280_000]
    threads = number_of_threads()
    compile_seconds, _ = seconds_of(lambda: build_graph(make_cohort(300), SETTINGS))
    sets = make_cohort(instances)
    sizes = np.diff(sets.indptr)
    print(f"{instances:,} instances, {sizes.mean():.1f} diagnoses (at most {sizes.max()}) over {CODES} categories, ")
    print(f"tau {TAU}, strongest {KEEP}; {threads} threads; first call {compile_seconds:.1f} s; {machine()}")

    runs = [seconds_of(lambda: build_graph(sets, SETTINGS)) for _ in range(3)]
    seconds, graph = float(np.median([spent for spent, _ in runs])), runs[0][1]
    rows = PartRows(sets, parts_of(sets, "cohort")[0], SETTINGS)
    work = np.zeros(4, dtype=np.int64)
    pairs_seconds, own = seconds_of(lambda: rows.find(0, instances, statistics=work))
    print(f"build: {seconds:.2f} s ({graph.edges:,} edges), of it all pairs {pairs_seconds:.2f} s")

    small_matrix = matrix_of(taken(sets, np.arange(small)))
    small_transposed = small_matrix.T.tocsr()
    choices = {
        number: min(
            seconds_of(lambda number=number: top_of_peer(small_matrix, small_transposed, number))[0] for _ in range(2)
        )
        for number in range(1, threads + 1)
    }
    best = min(choices, key=lambda number: choices[number])
    matrix = matrix_of(sets)
    transposed = matrix.T.tocsr()
    peer_seconds, peer = seconds_of(lambda: top_of_peer(matrix, transposed, best))
    check_equal(sets, own, peer)
    check_sample(graph)
    del peer, own
    print(f"sparse_dot_topn: {peer_seconds:.1f} s with {best} threads ({peer_seconds / seconds:.0f} times as long);")
    print("  every row has the same strongest weights")

    edges = graph.edges
    newcomers = measure_newcomers(graph, 30 if quick else 100)
    print(
        f"one newcomer: {newcomers['newcomer_ms']:.2f} ms, slowest {newcomers['newcomer_slowest_ms']:.2f} ms; "
        f"sparse_dot_topn {newcomers['newcomer_ms_sparse_dot_topn']:.2f} ms"
    )
    del graph, runs

    weighted = measure_weighted(sets, best, 30 if quick else 100)
    print(f"weighted: one newcomer {weighted['weighted_newcomer_ms']:.2f} ms")

    per_second, bytes_per_second = measure_rates(threads)
    instructions = instructions_of(float(work[0]), float(work[1]), float(work[2]))
    adder_bound = instructions / per_second
    stream_bound = float(work[1]) * 32 / bytes_per_second
    bound = max(adder_bound, stream_bound)
    skipped = 1 - work[0] / (instances * -(-instances // 256))
    print(f"bound: adders {adder_bound:.2f} s ({per_second / 1e9:.1f} G vector instructions/s), ")
    print(f"  bytes {stream_bound:.2f} s ({bytes_per_second / 1e9:.0f} GB/s from cache); ")
    print(f"  all pairs take {pairs_seconds / bound:.1f} times the bound; {skipped:.0%} of the columns were skipped, ")
    print(f"  {work[3] / instances:.0f} looked at per row")

    times = {}
    for number in growth:
        cohort = sets if number == instances else make_cohort(number)
        times[number] = min(seconds_of(lambda cohort=cohort: build_graph(cohort, SETTINGS))[0] for _ in range(2))
    exponent = float(np.polyfit(np.log(list(times)), np.log(list(times.values())), 1)[0])
    shown = ", ".join(f"{number:,}: {spent:.2f} s" for number, spent in times.items())
    print(f"growth: {shown}; exponent {exponent:.2f}")

    # Only the memory of the last three is asked for: in the quick form, two at a time.
    with kept(sets, make_cohort(small)) as (whole, part), ThreadPoolExecutor(2 if quick else 1) as pool:
        plain = in_fresh_process("scipy", part)
        tasks, places = ("build", "weighted", "build"), (whole, whole, part)
        fresh, overlaps, ours = pool.map(in_fresh_process, tasks, places)
    assert fresh["result"] == edges
    weighted["weighted_peak_gib"] = round(overlaps["peak"], 3)
    print(f"peak memory of a fresh process: {fresh['peak']:.2f} GiB, weighted {overlaps['peak']:.2f} GiB")
    print(
        f"{small:,} instances: scipy's product {plain['seconds']:.1f} s and {plain['peak']:.2f} GiB; "
        f"here {times[small]:.2f} s and {ours['peak']:.2f} GiB"
    )
    close_with(
        {
            "instances": instances,
            "seconds": round(seconds, 3),
            "speedup_over_sparse_dot_topn": round(peer_seconds / seconds, 1),
            "peak_gib": round(fresh["peak"], 3),
            **newcomers,
            **weighted,
            "all_pairs_seconds": round(pairs_seconds, 3),
            "sparse_dot_topn_seconds": round(peer_seconds, 2),
            "sparse_dot_topn_threads": best,
            "adder_bound_seconds": round(adder_bound, 3),
            "stream_bound_seconds": round(stream_bound, 3),
            "times_the_bound": round(pairs_seconds / bound, 2),
            "growth_seconds": {str(number): round(spent, 3) for number, spent in times.items()},
            "growth_exponent": round(exponent, 3),
            "scipy_instances": small,
            "scipy_seconds": round(plain["seconds"], 2),
            "scipy_gib": round(plain["peak"], 3),
            "scipy_instances_gib": round(ours["peak"], 3),
            "compile_seconds": round(compile_seconds, 2),
            "threads": threads,
        }
    )


if __name__ == "__main__":
    main()
