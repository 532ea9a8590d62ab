"""Adding quantised products of code weights for 128 columns at a time, as LLVM vector code.

A *weight row* holds for one code the weight of every column (bank instance) as a 16-bit fraction of the code's largest
weight. A query brings one 16-bit factor per code. The high half of the 16-bit product is one instruction for 16 or 32
columns, and the sums stay in registers from the first code to the comparison with the threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

CHUNK = 128
"""Columns whose sums are kept in registers together."""

_LANES = 64
_VECTORS = CHUNK // _LANES
_WORD = ir.IntType(64)
_HALF = ir.IntType(16)
_VECTOR = ir.VectorType(_HALF, _LANES)
_WIDE = ir.VectorType(ir.IntType(32), _LANES)

Value = Any
Builder = Any
Number = Any
"""A machine number inside a kernel; numba gives it its type."""


def _splat(builder: Builder, number: Value) -> Value:
    first = ir.Constant(ir.IntType(32), 0)
    lone = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, first)
    return builder.shuffle_vector(lone, lone, ir.Constant(ir.VectorType(ir.IntType(32), _LANES), None))


def _sum_chunk(
    typing_context: Any,
    table: Any,
    base: Any,
    offsets: Any,
    factors: Any,
    start: Any,
    size: Any,
    begun: Any,
    place: Any,
    threshold: Any,
    sums: Any,
    masks: Any,
) -> tuple[Any, Callable[..., Value]]:
    """Add one query's products for the columns of one chunk and say which columns reach a threshold.

    ``sum_chunk(table, base, offsets, factors, start, size, begun, place, threshold, sums, masks)``: the weight row of
    code ``p`` of the query begins at ``table[base + offsets[start + p]]`` and is multiplied by ``factors[start + p]``;
    the sums start from ``begun[place:]``. They are written to ``sums``, the bits of the columns with at least
    ``threshold`` to ``masks``. Returns whether there is any.
    """

    def generate(context: Any, builder: Builder, signature: Any, arguments: Any) -> Value:
        def data(number: int) -> Value:
            return context.make_array(signature.args[number])(context, builder, arguments[number]).data

        def vectors_at(pointer: Value) -> list[Value]:
            return [
                builder.bitcast(builder.gep(pointer, [ir.Constant(_WORD, number * _LANES)]), _VECTOR.as_pointer())
                for number in range(_VECTORS)
            ]

        rows = builder.gep(data(0), [arguments[1]])
        offsets, factors = (builder.gep(data(number), [arguments[4]]) for number in (2, 3))
        size, sums, masks = arguments[5], data(9), data(10)
        entry = builder.block
        begun = [builder.load(place, align=2) for place in vectors_at(builder.gep(data(6), [arguments[7]]))]
        head, body, done = (builder.function.append_basic_block(name) for name in ("codes", "code", "summed"))
        builder.branch(head)

        builder.position_at_end(head)
        position = builder.phi(_WORD)
        position.add_incoming(ir.Constant(_WORD, 0), entry)
        totals = [builder.phi(_VECTOR) for _ in range(_VECTORS)]
        for total, value in zip(totals, begun, strict=True):
            total.add_incoming(value, entry)
        builder.cbranch(builder.icmp_unsigned("<", position, size), body, done)

        builder.position_at_end(body)
        offset = builder.zext(builder.load(builder.gep(offsets, [position])), _WORD)
        factor = builder.zext(_splat(builder, builder.load(builder.gep(factors, [position]))), _WIDE)
        for total, place in zip(totals, vectors_at(builder.gep(rows, [offset])), strict=True):
            product = builder.mul(builder.zext(builder.load(place, align=2), _WIDE), factor)
            high = builder.trunc(builder.lshr(product, ir.Constant(_WIDE, [16] * _LANES)), _VECTOR)
            total.add_incoming(builder.add(total, high), body)
        position.add_incoming(builder.add(position, ir.Constant(_WORD, 1)), body)
        builder.branch(head)

        builder.position_at_end(done)
        limit = _splat(builder, builder.trunc(arguments[8], _HALF))
        reached = [builder.bitcast(builder.icmp_unsigned(">=", total, limit), _WORD) for total in totals]
        for total, place in zip(totals, vectors_at(sums), strict=True):
            builder.store(total, place, align=2)
        for number, mask in enumerate(reached):
            builder.store(mask, builder.gep(masks, [ir.Constant(_WORD, number)]))
        both = reached[0]
        for mask in reached[1:]:
            both = builder.or_(both, mask)
        return both

    whole = types.intp
    return types.uint64(table, whole, offsets, factors, whole, whole, begun, whole, whole, sums, masks), generate


sum_chunk: Callable[..., Any] = intrinsic(_sum_chunk)


def _prefetch(typing_context: Any, array: Any, place: Any) -> tuple[Any, Callable[..., Value]]:
    """Ask for the cache line of an element that will be read soon."""

    def generate(context: Any, builder: Builder, signature: Any, arguments: Any) -> Value:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), byte)
        # For reading, to be kept in all caches, as data.
        builder.call(function, [pointer, *(ir.Constant(flag, number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch: Callable[..., Any] = intrinsic(_prefetch)
