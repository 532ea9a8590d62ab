"""The inner loop of ``masking``: one target's last states after some of its edges were removed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from patients_like_me.explanation.known_pass import LayerStates, NormalisedGraph
from patients_like_me.workers import kernel

Array = Any


class Removals(NamedTuple):
    """What is asked: job n removes ``entries[indptr[n] : indptr[n + 1]]`` from the row of its target."""

    targets: Array
    indptr: Array
    entries: Array


class MaskingRoom(NamedTuple):
    """The arrays in which one thread works; between two calls each has the value that is named."""

    hops: Array
    """int64 [N], -1: the steps from a node to the target."""
    reached: Array
    """int64 [N]: the nodes that can reach the target, by their steps."""
    is_gone: Array
    """bool [entries], false: the entries that are removed."""
    rescaled: Array
    """float64 [N], 1: s'/s, what the lost weights make of the normalisation."""
    is_changed: Array
    """bool [N], false"""
    change: Array
    """float64 [N, F]: s'_b/s_b (H'_b - H_b) of the changed nodes."""
    fresh: Array
    """float64 [N, F]: the new Z - b of a layer, before it is rescaled."""

    @classmethod
    def of(cls, size: int, entries: int, width: int) -> MaskingRoom:
        """Return the room for a graph of this size and states of this width."""
        return cls(
            hops=np.full(size, -1, dtype=np.int64),
            reached=np.empty(size, dtype=np.int64),
            is_gone=np.zeros(entries, dtype=bool),
            rescaled=np.ones(size),
            is_changed=np.zeros(size, dtype=bool),
            change=np.zeros((size, width)),
            fresh=np.zeros((size, width)),
        )


@kernel
def states_without(
    removals: Removals, graph: NormalisedGraph, states: LayerStates, room: MaskingRoom, out: Array
) -> None:
    """Write H^(L) of each target without the edges of its row that are named; everything else of it is unchanged.

    Layer by layer only nodes that can still reach the target and that changed are computed again, as the old value plus
    a difference. A difference is multiplied by the layer's weights where it is received, which far fewer nodes do than
    send.
    """
    # Arrays are taken out of their tuples once: every access inside the loops would count references.
    targets, removed_indptr, removed_entries = removals.targets, removals.indptr, removals.entries
    indptr, columns, values, loops, reverse = graph.indptr, graph.columns, graph.values, graph.loops, graph.reverse
    receiver_indptr, receivers, receiver_entries = graph.receiver_indptr, graph.receivers, graph.receiver_entries
    weights, degrees = graph.weights, graph.degrees
    mixed, spread, biases, layer_weights = states.mixed, states.spread, states.biases, states.layer_weights
    hops, reached, is_gone, rescaled = room.hops, room.reached, room.is_gone, room.rescaled
    is_changed, change, fresh = room.is_changed, room.change, room.fresh
    layers, size, width = mixed.shape
    sources = np.empty(size, dtype=np.int64)
    results = np.empty(size, dtype=np.int64)
    moved = np.empty(size, dtype=np.int64)
    is_result = np.zeros(size, dtype=np.bool_)
    difference = np.zeros(width)
    for job in range(len(targets)):
        target = targets[job]
        first, last = removed_indptr[job], removed_indptr[job + 1]
        # The degrees: the target loses all removed weights, each reference its own where it receives from the target.
        lost = 0.0
        moves = 1
        moved[0] = target
        for place in range(first, last):
            entry = removed_entries[place]
            is_gone[entry] = True
            lost += weights[entry]
            if reverse[entry] >= 0:
                is_gone[reverse[entry]] = True
                neighbor = columns[entry]
                rescaled[neighbor] = np.sqrt(degrees[neighbor] / (degrees[neighbor] - weights[entry]))
                moved[moves] = neighbor
                moves += 1
        rescaled[target] = np.sqrt(degrees[target] / (degrees[target] - lost))
        # Who can reach the target, and in how many steps.
        hops[target] = 0
        reached[0] = target
        count, begin = 1, 0
        for hop in range(1, layers):
            stop = count
            for index in range(begin, stop):
                for entry in range(indptr[reached[index]], indptr[reached[index] + 1]):
                    if hops[columns[entry]] < 0 and not is_gone[entry]:
                        hops[columns[entry]] = hop
                        reached[count] = columns[entry]
                        count += 1
            begin = stop
        changed = 0
        for layer in range(layers):
            radius = layers - 1 - layer
            found = 0
            if layer == 0 and radius > 0:
                # Few nodes changed: go from them to their receivers.
                for index in range(moves):
                    node = moved[index]
                    source, more = mixed[0, node], rescaled[node] - 1.0
                    for entry in range(receiver_indptr[node] - 1, receiver_indptr[node + 1]):
                        own = entry < receiver_indptr[node]
                        receiver = node if own else receivers[entry]
                        if hops[receiver] < 0 or hops[receiver] > radius:
                            continue
                        row = fresh[receiver]
                        if not is_result[receiver]:
                            is_result[receiver] = True
                            results[found] = receiver
                            found += 1
                            for place in range(width):
                                row[place] = spread[0, receiver, place]
                        if own:
                            factor = loops[node] * more
                        elif is_gone[receiver_entries[entry]]:
                            factor = -values[receiver_entries[entry]]
                        else:
                            factor = values[receiver_entries[entry]] * more
                        for place in range(width):
                            row[place] += factor * source[place]
                # A reference that does not receive from the target did not change, but its entry is gone.
                for place_removed in range(first, last):
                    entry = removed_entries[place_removed]
                    if reverse[entry] < 0:
                        row, source = fresh[target], mixed[0, columns[entry]]
                        for place in range(width):
                            row[place] -= values[entry] * source[place]
            else:
                # Few results are wanted: go from them to what they receive from.
                for index in range(count):
                    receiver = reached[index]
                    if hops[receiver] > radius:
                        continue
                    is_result[receiver] = True
                    results[found] = receiver
                    found += 1
                    row = fresh[receiver]
                    for place in range(width):
                        row[place] = spread[layer, receiver, place]
                    for place in range(width):
                        difference[place] = 0.0
                    received = False
                    for entry in range(indptr[receiver] - 1, indptr[receiver + 1]):
                        own = entry < indptr[receiver]
                        node = receiver if own else columns[entry]
                        value = loops[receiver] if own else values[entry]
                        source = mixed[layer, node]
                        if not own and is_gone[entry]:
                            for place in range(width):
                                row[place] -= value * source[place]
                            continue
                        if rescaled[node] != 1.0:
                            factor = value * (rescaled[node] - 1.0)
                            for place in range(width):
                                row[place] += factor * source[place]
                        if is_changed[node]:
                            received = True
                            sent = change[node]
                            for place in range(width):
                                difference[place] += value * sent[place]
                    if received:
                        for place in range(width):
                            step, weight = difference[place], layer_weights[layer - 1, place]
                            for onward in range(width):
                                row[onward] += step * weight[onward]
            for index in range(changed):
                is_changed[sources[index]] = False
            changed = 0
            for index in range(found):
                receiver = results[index]
                is_result[receiver] = False
                row = fresh[receiver]
                if layer == layers - 1:
                    for place in range(width):
                        out[job, place] = max(rescaled[receiver] * row[place] + biases[layer, place], 0.0)
                    continue
                onto, factor = change[receiver], rescaled[receiver]
                for place in range(width):
                    bias = biases[layer, place]
                    before = max(spread[layer, receiver, place] + bias, 0.0)
                    onto[place] = factor * (max(factor * row[place] + bias, 0.0) - before)
                is_changed[receiver] = True
                sources[changed] = receiver
                changed += 1
        for index in range(count):
            hops[reached[index]] = -1
        for index in range(moves):
            rescaled[moved[index]] = 1.0
        for place in range(first, last):
            is_gone[removed_entries[place]] = False
            if reverse[removed_entries[place]] >= 0:
                is_gone[reverse[removed_entries[place]]] = False
