r"""The inner loops of batch attribution, for up to three layers; ``batch_attribution`` explains what they compute."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from patients_like_me.explanation.hubs import Hubs
from patients_like_me.explanation.known_pass import LayerStates, NormalisedGraph
from patients_like_me.workers import kernel

Array = Any


class Targets(NamedTuple):
    """All targets that are attributed, and what their logits need of the last layer."""

    number_of: Array
    """int64 [N]: the number of the target, -1 for nodes that are not a target."""
    last: Array
    """float64 [targets, F]: D^(L-1) at the target itself."""
    pulled: Array
    """float64 [targets, F]: r = W^(L-1) D^(L-1)."""
    first_entries: Array
    """int64 [targets]: where the target's edges begin in the result."""


class Block(NamedTuple):
    """The nodes of one call."""

    nodes: Array
    offsets: Array
    """int64: where the rows of a node begin in ``images``: one per receiver, then its own."""
    images: Array
    """float64 [rows, F]: the products with W^(1); one row that nobody reads where there are not three layers."""


class AttributionRoom(NamedTuple):
    """The arrays in which one thread works."""

    touched: Array
    """int32 [N]: the rows of ``tangent`` that are in use."""
    is_touched: Array
    """bool [N], all false between two calls."""
    tangent: Array
    """float64 [N, F], zeros between two calls: the tangent of H^(L-1) when a node is done."""
    slot_of: Array
    """int64 [N], all -1 between two calls."""
    backward: Array
    """float64 [largest number of neighbours + 1, F]: D^(1) pulled back to the target and its neighbours."""

    @classmethod
    def of(cls, size: int, most_neighbors: int, width: int) -> AttributionRoom:
        """Return the room for a graph of this size, targets and states."""
        return cls(
            touched=np.empty(size, dtype=np.int32),
            is_touched=np.zeros(size, dtype=bool),
            tangent=np.zeros((size, width)),
            slot_of=np.full(size, -1, dtype=np.int64),
            backward=np.empty((most_neighbors + 1, width)),
        )


@kernel
def dot(first: Any, second: Any) -> float:
    """Return the inner product; four running sums, so that no addition waits for the one before it."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    width = len(first)
    place = 0
    while place + 4 <= width:
        a += first[place] * second[place]
        b += first[place + 1] * second[place + 1]
        c += first[place + 2] * second[place + 2]
        d += first[place + 3] * second[place + 3]
        place += 4
    while place < width:
        a += first[place] * second[place]
        place += 1
    return (a + b) + (c + d)


@kernel
def masked_dot(first: Any, active: Any, second: Any) -> float:
    """Return the inner product over the active places."""
    total = 0.0
    for place in range(len(first)):
        if active[place]:
            total += first[place] * second[place]
    return total


@kernel
def masked_inputs(nodes: Array, offsets: Array, graph: NormalisedGraph, states: LayerStates, out: Array) -> None:
    """Fill the rows whose product with W^(1) is needed, per node j: one for each receiver a, then one for j itself.

    They are M^(0)_j at the active places of a, and for j: Â_jj M^(0)_j + (Z - b)^(0)_j at its own active places.
    """
    # Arrays are taken out of their tuples once: every access inside the loops would count references.
    receiver_indptr, receivers, loops = graph.receiver_indptr, graph.receivers, graph.loops
    mixed, spread, active = states.mixed, states.spread, states.active
    width = mixed.shape[2]
    for number in range(len(nodes)):
        node = nodes[number]
        row = offsets[number]
        for entry in range(receiver_indptr[node], receiver_indptr[node + 1]):
            receiver = receivers[entry]
            for place in range(width):
                out[row, place] = mixed[0, node, place] if active[0, receiver, place] else 0.0
            row += 1
        for place in range(width):
            own = loops[node] * mixed[0, node, place] + spread[0, node, place]
            out[row, place] = own if active[0, node, place] else 0.0


@kernel
def direct_terms(
    block: Block,
    targets: Targets,
    graph: NormalisedGraph,
    states: LayerStates,
    hubs: Hubs,
    receiver_places: Array,
    room: AttributionRoom,
    out: Array,
) -> None:
    """Write g_ij + g_ji of every target i of the block and its neighbours j.

    ``receiver_places`` [entries] is, of entry (i, j), the place of j among the receivers of i, or -1.
    """
    nodes, offsets, images = block.nodes, block.offsets, block.images
    number_of, first_entries = targets.number_of, targets.first_entries
    indptr, columns, values, loops, reverse = graph.indptr, graph.columns, graph.values, graph.loops, graph.reverse
    mixed, active, layer_weights = states.mixed, states.active, states.layer_weights
    hub_of, hub_values = hubs.number_of, hubs.values
    slot_of, backward = room.slot_of, room.backward
    layers, width = mixed.shape[0], mixed.shape[2]
    own = np.zeros(width)
    passed = np.zeros(width)
    for number in range(len(nodes)):
        node = nodes[number]
        which = number_of[node]
        if which < 0:
            continue
        last, pulled = targets.last[which], targets.pulled[which]
        start, end = indptr[node], indptr[node + 1]
        place_out = first_entries[which]
        for entry in range(start, end):
            out[place_out + entry - start] = dot(last, mixed[layers - 1, columns[entry]])
        if layers == 1:
            continue
        below = layers - 2
        for place in range(width):
            own[place] = loops[node] * pulled[place] if active[below, node, place] else 0.0
        for entry in range(start, end):
            neighbor = columns[entry]
            found = dot(own, mixed[below, neighbor])
            if reverse[entry] >= 0:
                found += values[entry] * masked_dot(pulled, active[below, neighbor], mixed[below, node])
            out[place_out + entry - start] += found
        if layers == 2:
            continue
        # D^(1) of the target and its neighbours, pulled back to those of them that have an edge to each other.
        slot_of[node] = 0
        for entry in range(start, end):
            slot_of[columns[entry]] = entry - start + 1
        for slot in range(end - start + 1):
            for place in range(width):
                backward[slot, place] = 0.0
        for sender in range(-1, end - start):
            middle = node if sender < 0 else columns[start + sender]
            reached = loops[node] if sender < 0 else values[start + sender]
            for place in range(width):
                passed[place] = reached * pulled[place] if active[1, middle, place] else 0.0
            hub = hub_of[middle]
            if hub >= 0:
                # A hub's row is long: look up the few that matter.
                for slot in range(end - start + 1):
                    value = hub_values[node if slot == 0 else columns[start + slot - 1], hub]
                    if value != 0.0:
                        row = backward[slot]
                        for place in range(width):
                            row[place] += value * passed[place]
                continue
            row = backward[slot_of[middle]]
            for place in range(width):
                row[place] += loops[middle] * passed[place]
            for entry in range(indptr[middle], indptr[middle + 1]):
                slot = slot_of[columns[entry]]
                if slot >= 0:
                    row, value = backward[slot], values[entry]
                    for place in range(width):
                        row[place] += value * passed[place]
        for place in range(width):
            own[place] = dot(layer_weights[0, place], backward[0]) if active[0, node, place] else 0.0
        for entry in range(start, end):
            found = dot(own, mixed[0, columns[entry]])
            if reverse[entry] >= 0:
                found += dot(backward[entry - start + 1], images[offsets[number] + receiver_places[entry]])
            out[place_out + entry - start] += found
            slot_of[columns[entry]] = -1
        slot_of[node] = -1


@kernel
def degree_effects(
    block: Block,
    targets: Targets,
    graph: NormalisedGraph,
    states: LayerStates,
    hubs: Hubs,
    room: AttributionRoom,
    own_effects: Array,
    entry_effects: Array,
) -> None:
    """Write the effect of ln s_j on the target logits of j itself and of all targets that receive from j."""
    nodes, offsets, images = block.nodes, block.offsets, block.images
    target_number, last, pulled = targets.number_of, targets.last, targets.pulled
    indptr, columns, values, loops = graph.indptr, graph.columns, graph.values, graph.loops
    receiver_indptr, receivers, receiver_entries = graph.receiver_indptr, graph.receivers, graph.receiver_entries
    mixed, spread, active = states.mixed, states.spread, states.active
    hub_of, hub_values, hub_pairs = hubs.number_of, hubs.values, hubs.pairs
    touched, is_touched, tangent = room.touched, room.is_touched, room.tangent
    layers, width = mixed.shape[0], mixed.shape[2]
    gathered = np.zeros(width)
    no_image = np.zeros(width)
    near = np.empty(max(hub_values.shape[1], 1), dtype=np.int64)
    sent = np.zeros((max(hub_values.shape[1], 1), width))
    received = np.zeros((max(hub_values.shape[1], 1), width))
    for number in range(len(nodes)):
        node = nodes[number]
        start, end = receiver_indptr[node], receiver_indptr[node + 1]
        count, hubs_near = 0, 0
        for entry in range(start - 1, end):
            if layers == 1:
                break
            changed = node if entry < start else receivers[entry]
            reached = 1.0 if entry < start else values[receiver_entries[entry]]
            if not is_touched[changed]:
                is_touched[changed] = True
                touched[count] = changed
                count += 1
            # What the column and the row of j change directly in the layer below the last.
            row, source = tangent[changed], mixed[layers - 2, node]
            if entry < start:
                for place in range(width):
                    row[place] += loops[node] * source[place] + spread[layers - 2, node, place]
            else:
                for place in range(width):
                    row[place] += reached * source[place]
            image = (
                images[offsets[number] + (end - start if entry < start else entry - start)] if layers == 3 else no_image
            )
            if hub_of[changed] >= 0:
                near[hubs_near] = hub_of[changed]
                for place in range(width):
                    sent[hubs_near, place] = reached * image[place]
                    received[hubs_near, place] = 0.0
                hubs_near += 1
                continue
            if layers == 2:
                continue
            # What the first layer changed, passed on to everyone who receives from the changed node.
            factor = reached * loops[changed]
            for place in range(width):
                row[place] += factor * image[place]
            for onward in range(receiver_indptr[changed], receiver_indptr[changed + 1]):
                receiver = receivers[onward]
                if not is_touched[receiver]:
                    is_touched[receiver] = True
                    touched[count] = receiver
                    count += 1
                factor = reached * values[receiver_entries[onward]]
                onto = tangent[receiver]
                for place in range(width):
                    onto[place] += factor * image[place]
        for index in range(count):
            receiver = touched[index]
            row, on = tangent[receiver], active[layers - 2, receiver]
            for place in range(width):
                row[place] = row[place] if on[place] else 0.0
            for hub in range(hubs_near):
                value = hub_values[receiver, near[hub]]
                if value != 0.0:
                    onto = received[hub]
                    for place in range(width):
                        onto[place] += value * row[place]
            if layers == 3:
                for hub in range(hubs_near):
                    value = hub_values[receiver, near[hub]]
                    if value != 0.0:
                        source = sent[hub]
                        for place in range(width):
                            row[place] += value * source[place]
                for place in range(width):
                    row[place] = row[place] if on[place] else 0.0
        if layers == 3:
            for hub in range(hubs_near):
                for other in range(hubs_near):
                    pair, source, onto = hub_pairs[near[hub], near[other]], sent[other], received[hub]
                    for place in range(width):
                        onto[place] += pair[place] * source[place]
        hubs_near = 0
        for entry in range(start - 1, end):
            target = node if entry < start else receivers[entry]
            if layers > 1 and hub_of[target] >= 0:
                hubs_near += 1
            which = target_number[target]
            if which < 0:
                continue
            effect = 0.0
            if layers > 1 and hub_of[target] >= 0:
                effect = dot(pulled[which], received[hubs_near - 1])
            elif layers > 1:
                row = tangent[target]
                for place in range(width):
                    gathered[place] = loops[target] * row[place]
                for back in range(indptr[target], indptr[target + 1]):
                    if is_touched[columns[back]]:
                        row, value = tangent[columns[back]], values[back]
                        for place in range(width):
                            gathered[place] += value * row[place]
                effect = dot(pulled[which], gathered)
            if entry < start:
                effect += loops[node] * dot(last[which], mixed[layers - 1, node])
                own_effects[which] = effect + dot(last[which], spread[layers - 1, node])
            else:
                value = values[receiver_entries[entry]]
                entry_effects[receiver_entries[entry]] = effect + value * dot(last[which], mixed[layers - 1, node])
        for index in range(count):
            row = tangent[touched[index]]
            is_touched[touched[index]] = False
            for place in range(width):
                row[place] = 0.0
