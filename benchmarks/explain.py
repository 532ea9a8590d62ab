"""Measure batch attribution against one backward pass per target in plain PyTorch, all in one run.

Run ``python benchmarks/explain.py`` (some minutes) or, for a smaller graph, ``python benchmarks/explain.py --quick``
(under a minute). The last line is JSON.

What is measured
- The graph: synthetic instances with 22 diagnoses on average, tau 8, the strongest 32 of each node; a network of three
  layers of width 128 with first weights (what is learned does not change the work).
- ``seconds``: the importance of *all* references of *all* instances in one process, the forward pass included, in
  double precision, after a first small call that may compile.
- ``speedup_over_backward_per_target``: the peer is what one writes first: edge weights that carry a gradient, one
  forward pass over the whole graph that is kept, and one ``torch.autograd.grad`` per target, in single precision,
  in which it is faster. It is timed on a sample of targets (``peer_sample``) and scaled to all; its forward pass is
  not counted. ``speedup_over_forward_and_backward`` counts both, for a peer that cannot keep the forward pass.
- ``speedup_over_ego_net``: the same peer on the ego net of each target, all that is within three steps, cut out again
  for each. In a graph with hubs that is most of the graph.
- ``peak_gib``: the largest memory of a fresh process that draws the cohort, builds the graph and attributes all
  instances, libraries included. ``peak_gib_with_peers`` is that of this process, in which the peers keep a forward pass
  of the whole graph with gradients: several times as much.
- ``max_relative_difference``: against both peers in double precision on the sample (the ego net on one target),
  relative to the largest importance of the same target.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from _measure import close_with, machine, peak_gib
from graph import SETTINGS, make_cohort, own_peak_gib

from patients_like_me.explanation.batch_attribution import attribute
from patients_like_me.explanation.known_pass import known_pass
from patients_like_me.explanation.network_pass import SharedWeights
from patients_like_me.explanation.target_edges import TargetEdges
from patients_like_me.graph import PatientGraph, build_graph
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import GraphNetworkSettings
from patients_like_me.workers import number_of_threads

WIDTH, LAYERS = 128, 3


def seconds_of(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long a call took, and its result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def network_and_embeddings(nodes: int) -> tuple[GraphNetwork, torch.Tensor]:
    """Return a network with first weights and random embeddings, in single precision."""
    with seeded(0):
        network = GraphNetwork(WIDTH, 1, GraphNetworkSettings(layers=LAYERS, width=WIDTH)).eval()
        return network, torch.randn(nodes, WIDTH)


def attribute_all(network: GraphNetwork, graph: PatientGraph, embeddings: torch.Tensor) -> np.ndarray:
    """Return the importance of every reference of every instance, in the order of the graph's entries."""
    known = known_pass(network, graph, embeddings)
    edges = TargetEdges.of(known.graph.indptr, known.graph.columns, np.arange(len(graph)))
    return attribute(known, edges, np.ones((len(graph), 1)))


class WholeGraphPeer:
    """One kept forward pass over the whole graph, one backward pass per target."""

    def __init__(self, network: GraphNetwork, graph: PatientGraph, embeddings: torch.Tensor) -> None:
        self.graph = graph
        shared = SharedWeights.of_graph(graph, embeddings.dtype)
        self.parameters = shared.first_weights.clone().requires_grad_()
        self.parameter_of_entry = shared.parameter_of_entry
        self.logits = network(embeddings, network.propagation(shared.edges(self.parameters)))[:, 0]

    def importances(self, target: int) -> np.ndarray:
        """Return the importances of one target's references."""
        (gradient,) = torch.autograd.grad(self.logits[target], self.parameters, retain_graph=True)
        row = slice(int(self.graph.indptr[target]), int(self.graph.indptr[target + 1]))
        return gradient[self.parameter_of_entry[row]].double().numpy()


def ego_net_importances(
    network: GraphNetwork, graph: PatientGraph, embeddings: torch.Tensor, target: int
) -> tuple[np.ndarray, int]:
    """Return the importances of one target's references from its ego net alone, and the size of that net."""
    nodes = np.array([target])
    for _ in range(LAYERS):
        reached = [graph.neighbors[graph.indptr[node] : graph.indptr[node + 1]] for node in nodes]
        nodes = np.unique(np.concatenate([nodes, *reached]))
    part = graph.sub_graph(nodes)
    shared = SharedWeights.of_graph(part, embeddings.dtype)
    parameters = shared.first_weights.clone().requires_grad_()
    # Nodes at the rim have edges that lead out of the net: their weights stay in the degree, as a larger self-loop,
    # which cannot reach the target.
    whole = np.add.reduceat(np.append(graph.weights.astype(np.float64), 0.0), graph.indptr[:-1])[nodes]
    inside = np.bincount(shared.targets.numpy(), weights=part.weights.astype(np.float64), minlength=len(nodes))
    outside = torch.from_numpy(np.where(graph.degrees[nodes] > 0, whole, 0.0) - inside).to(embeddings.dtype)
    edges = replace(shared.edges(parameters), self_loops=shared.self_loops + outside)
    place = int(np.searchsorted(nodes, target))
    logit = network(embeddings[torch.from_numpy(nodes)], network.propagation(edges))[place, 0]
    (gradient,) = torch.autograd.grad(logit, parameters)
    row = slice(int(part.indptr[place]), int(part.indptr[place + 1]))
    return gradient[shared.parameter_of_entry[row]].double().numpy(), len(nodes)


def relative_difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference of one target's importances, relative to the largest of them."""
    return float(np.abs(found - expected).max(initial=0.0) / max(np.abs(expected).max(initial=0.0), 1e-300))


def attribution_peak(instances: int) -> float:
    """Return the peak memory of a fresh process that attributes all instances."""
    command = [sys.executable, __file__, "--peak-of", str(instances)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(found.stdout.splitlines()[-1])["peak"])


def measure_own_peak(instances: int) -> None:
    """Attribute all instances of a drawn cohort and print the peak memory of this process."""
    graph = build_graph(make_cohort(instances), SETTINGS)
    network, embeddings = network_and_embeddings(instances)
    attribute_all(network, graph, embeddings)
    close_with({"peak": own_peak_gib()})


def main() -> None:
    """Measure everything and print it, the last line as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller graph, under a minute")
    parser.add_argument("--peak-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of:
        measure_own_peak(options.peak_of)
        return
    quick = options.quick
    instances, sample_size, ego_sample = (2_000, 3, 2) if quick else (20_000, 8, 4)

    small = build_graph(make_cohort(300), SETTINGS)
    small_network, small_embeddings = network_and_embeddings(len(small))
    warm_up = small_network, small, small_embeddings
    compile_seconds, _ = seconds_of(lambda: attribute_all(*warm_up))
    graph = build_graph(make_cohort(instances), SETTINGS)
    network, embeddings = network_and_embeddings(instances)
    walks = int((graph.degrees.astype(np.float64) ** 2).sum())
    print(f"{instances:,} instances, {graph.edges:,} edges, degree {graph.degrees.mean():.0f} on average, at most ")
    print(f"{graph.degrees.max():,}, {walks:,} two-step walks; {LAYERS} layers of width {WIDTH}; {machine()}")
    print(f"first call (compiles where it must): {compile_seconds:.1f} s")

    seconds, found = seconds_of(lambda: attribute_all(network, graph, embeddings))
    print(f"batch attribution: {seconds:.2f} s for {len(found):,} references, {number_of_threads()} threads")

    generator = np.random.default_rng(1)
    sample = generator.permutation(np.flatnonzero(graph.degrees))[:sample_size]
    forward, peer = seconds_of(lambda: WholeGraphPeer(network, graph, embeddings))
    peer.importances(int(sample[0]))
    backward = float(np.median([seconds_of(partial(peer.importances, int(node)))[0] for node in sample]))
    del peer
    print(
        f"plain PyTorch: forward {forward:.2f} s, one backward pass {backward:.3f} s (median of {len(sample)} targets)"
    )

    egos = [
        seconds_of(partial(ego_net_importances, network, graph, embeddings, int(node))) for node in sample[:ego_sample]
    ]
    ego_seconds = float(np.median([spent for spent, _ in egos]))
    ego_nodes = int(np.median([size for _, (_, size) in egos]))
    print(f"plain PyTorch on ego nets: {ego_seconds:.3f} s per target, {ego_nodes:,} nodes in the median net")

    exact_network, exact_embeddings = network.double(), embeddings.double()
    exact = WholeGraphPeer(exact_network, graph, exact_embeddings)
    row_of = [slice(int(graph.indptr[node]), int(graph.indptr[node + 1])) for node in sample]
    differences = [
        relative_difference(found[row], exact.importances(int(node))) for node, row in zip(sample, row_of, strict=True)
    ]
    del exact
    ego_differences = [
        relative_difference(found[row], ego_net_importances(exact_network, graph, exact_embeddings, int(node))[0])
        for node, row in zip(sample[:1], row_of[:1], strict=True)
    ]
    worst = max([*differences, *ego_differences])
    print(f"largest relative difference from the peers in double precision: {worst:.1e}")
    close_with(
        {
            "instances": instances,
            "references": len(found),
            "seconds": round(seconds, 2),
            "speedup_over_backward_per_target": round(backward * instances / seconds, 1),
            "speedup_over_forward_and_backward": round((forward + backward) * instances / seconds, 1),
            "speedup_over_ego_net": round(ego_seconds * instances / seconds, 1),
            "max_relative_difference": worst,
            "peer_sample": len(sample),
            "ego_net_sample": len(egos),
            "backward_seconds_per_target": round(backward, 4),
            "peak_gib": round(attribution_peak(instances), 2),
            "peak_gib_with_peers": round(peak_gib(), 2),
        }
    )


if __name__ == "__main__":
    main()
