r"""The inner loops of batch attribution, for up to three layers; ``batch_attribution`` explains what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from patients_like_me.workers import kernel


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
def masked_inputs(
    nodes: Any,
    listener_indptr: Any,
    listeners: Any,
    loops: Any,
    mixed: Any,
    spread: Any,
    active: Any,
    offsets: Any,
    out: Any,
) -> None:
    """Fill the rows whose product with W^(1) is needed, per node j: one for each listener a, then one for j itself.

    They are M^(0)_j at the active places of a, and for j: Â_jj M^(0)_j + (Z - b)^(0)_j at its own active places.
    """
    width = mixed.shape[2]
    for number in range(len(nodes)):
        node = nodes[number]
        row = offsets[number]
        for entry in range(listener_indptr[node], listener_indptr[node + 1]):
            listener = listeners[entry]
            for place in range(width):
                out[row, place] = mixed[0, node, place] if active[0, listener, place] else 0.0
            row += 1
        for place in range(width):
            own = loops[node] * mixed[0, node, place] + spread[0, node, place]
            out[row, place] = own if active[0, node, place] else 0.0


@kernel
def direct_terms(
    nodes: Any,
    indptr: Any,
    columns: Any,
    values: Any,
    loops: Any,
    reverse: Any,
    listener_place: Any,
    mixed: Any,
    active: Any,
    layer_weights: Any,
    last: Any,
    pulled: Any,
    offsets: Any,
    images: Any,
    first_entries: Any,
    hub_of: Any,
    hub_values: Any,
    slot_of: Any,
    backward: Any,
    out: Any,
) -> None:
    """Write g_ij + g_ji of every target i and its neighbours j; ``first_entries`` says where a target's row starts.

    ``last`` is D^(L-1) of the targets, ``pulled`` r. ``slot_of`` (all -1) and ``backward`` (zeros) are room to work in.
    """
    layers, width = mixed.shape[0], mixed.shape[2]
    own = np.zeros(width)
    passed = np.zeros(width)
    for number in range(len(nodes)):
        node = nodes[number]
        start, end = indptr[node], indptr[node + 1]
        place_out = first_entries[number]
        for entry in range(start, end):
            out[place_out + entry - start] = dot(last[number], mixed[layers - 1, columns[entry]])
        if layers == 1:
            continue
        below = layers - 2
        for place in range(width):
            own[place] = loops[node] * pulled[number, place] if active[below, node, place] else 0.0
        for entry in range(start, end):
            neighbor = columns[entry]
            found = dot(own, mixed[below, neighbor])
            if reverse[entry] >= 0:
                found += values[entry] * masked_dot(pulled[number], active[below, neighbor], mixed[below, node])
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
                passed[place] = reached * pulled[number, place] if active[1, middle, place] else 0.0
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
                found += dot(backward[entry - start + 1], images[offsets[number] + listener_place[entry]])
            out[place_out + entry - start] += found
            slot_of[columns[entry]] = -1
        slot_of[node] = -1


@kernel
def degree_effects(
    nodes: Any,
    indptr: Any,
    columns: Any,
    values: Any,
    loops: Any,
    listener_indptr: Any,
    listeners: Any,
    listener_entries: Any,
    mixed: Any,
    spread: Any,
    active: Any,
    target_number: Any,
    last: Any,
    pulled: Any,
    offsets: Any,
    images: Any,
    hub_of: Any,
    hub_values: Any,
    hub_pairs: Any,
    touched: Any,
    is_touched: Any,
    tangent: Any,
    own_effects: Any,
    entry_effects: Any,
) -> None:
    """Write the effect of ln s_j on the target logits of j itself and of all targets that receive from j.

    ``target_number`` is -1 for nodes that are no target. ``tangent`` (zeros) holds the tangent of H^(L-1) when a node
    is done; ``touched`` and ``is_touched`` (false) say which rows are in use.
    """
    layers, width = mixed.shape[0], mixed.shape[2]
    gathered = np.zeros(width)
    no_image = np.zeros(width)
    near = np.empty(max(hub_values.shape[1], 1), dtype=np.int64)
    sent = np.zeros((max(hub_values.shape[1], 1), width))
    received = np.zeros((max(hub_values.shape[1], 1), width))
    for number in range(len(nodes)):
        node = nodes[number]
        start, end = listener_indptr[node], listener_indptr[node + 1]
        count, hubs = 0, 0
        for entry in range(start - 1, end):
            if layers == 1:
                break
            changed = node if entry < start else listeners[entry]
            reached = 1.0 if entry < start else values[listener_entries[entry]]
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
                near[hubs] = hub_of[changed]
                for place in range(width):
                    sent[hubs, place] = reached * image[place]
                    received[hubs, place] = 0.0
                hubs += 1
                continue
            if layers == 2:
                continue
            # What the first layer changed, passed on to everyone who receives from the changed node.
            factor = reached * loops[changed]
            for place in range(width):
                row[place] += factor * image[place]
            for onward in range(listener_indptr[changed], listener_indptr[changed + 1]):
                receiver = listeners[onward]
                if not is_touched[receiver]:
                    is_touched[receiver] = True
                    touched[count] = receiver
                    count += 1
                factor = reached * values[listener_entries[onward]]
                onto = tangent[receiver]
                for place in range(width):
                    onto[place] += factor * image[place]
        for index in range(count):
            receiver = touched[index]
            row, on = tangent[receiver], active[layers - 2, receiver]
            for place in range(width):
                row[place] = row[place] if on[place] else 0.0
            for hub in range(hubs):
                value = hub_values[receiver, near[hub]]
                if value != 0.0:
                    onto = received[hub]
                    for place in range(width):
                        onto[place] += value * row[place]
            if layers == 3:
                for hub in range(hubs):
                    value = hub_values[receiver, near[hub]]
                    if value != 0.0:
                        source = sent[hub]
                        for place in range(width):
                            row[place] += value * source[place]
                for place in range(width):
                    row[place] = row[place] if on[place] else 0.0
        if layers == 3:
            for hub in range(hubs):
                for other in range(hubs):
                    pair, source, onto = hub_pairs[near[hub], near[other]], sent[other], received[hub]
                    for place in range(width):
                        onto[place] += pair[place] * source[place]
        hubs = 0
        for entry in range(start - 1, end):
            target = node if entry < start else listeners[entry]
            if layers > 1 and hub_of[target] >= 0:
                hubs += 1
            which = target_number[target]
            if which < 0:
                continue
            effect = 0.0
            if layers > 1 and hub_of[target] >= 0:
                effect = dot(pulled[which], received[hubs - 1])
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
                value = values[listener_entries[entry]]
                entry_effects[listener_entries[entry]] = effect + value * dot(last[which], mixed[layers - 1, node])
        for index in range(count):
            row = tangent[touched[index]]
            is_touched[touched[index]] = False
            for place in range(width):
                row[place] = 0.0


@kernel
def pairs_of_hubs(indptr: Any, columns: Any, hub_of: Any, hub_values: Any, active: Any, out: Any) -> None:
    """Add up, for every two hubs, the product of their entries at each node, at the node's active places."""
    size, width = active.shape
    near = np.empty(max(hub_values.shape[1], 1), dtype=np.int64)
    for node in range(size):
        count = 0
        for entry in range(indptr[node] - 1, indptr[node + 1]):
            hub = hub_of[node if entry < indptr[node] else columns[entry]]
            if hub >= 0:
                near[count] = hub
                count += 1
        for first in range(count):
            for second in range(count):
                factor = hub_values[node, near[first]] * hub_values[node, near[second]]
                row = out[near[first], near[second]]
                for place in range(width):
                    if active[node, place]:
                        row[place] += factor
