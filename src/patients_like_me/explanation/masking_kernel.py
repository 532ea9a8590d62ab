"""The inner loop of ``masking``: one target's last states after some of its edges were removed."""

from __future__ import annotations

from typing import Any

import numpy as np

from patients_like_me.workers import kernel


@kernel
def states_without(
    targets: Any,
    removed_indptr: Any,
    removed_entries: Any,
    indptr: Any,
    columns: Any,
    values: Any,
    loops: Any,
    listener_indptr: Any,
    listeners: Any,
    listener_entries: Any,
    reverse: Any,
    weights: Any,
    degrees: Any,
    mixed: Any,
    spread: Any,
    biases: Any,
    layer_weights: Any,
    hops: Any,
    reached: Any,
    is_gone: Any,
    rescaled: Any,
    is_changed: Any,
    change: Any,
    fresh: Any,
    out: Any,
) -> None:
    """Write H^(L) of each target without the edges of its row that are named; everything else of it is unchanged.

    Layer by layer only nodes that can still reach the target and that changed are computed again, as the old value plus
    a difference. ``change[b]`` is s'_b/s_b (H'_b - H_b) of the changed nodes; a difference is multiplied by the layer's
    weights where it is received, which far fewer nodes do than send. Room to work in: ``hops`` (all -1), ``reached``,
    ``is_gone`` (false), ``rescaled`` (ones), ``is_changed`` (false), ``change``, ``fresh``.
    """
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
                # Few nodes changed: go from them to their listeners.
                for index in range(moves):
                    node = moved[index]
                    source, more = mixed[0, node], rescaled[node] - 1.0
                    for entry in range(listener_indptr[node] - 1, listener_indptr[node + 1]):
                        own = entry < listener_indptr[node]
                        receiver = node if own else listeners[entry]
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
                        elif is_gone[listener_entries[entry]]:
                            factor = -values[listener_entries[entry]]
                        else:
                            factor = values[listener_entries[entry]] * more
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
