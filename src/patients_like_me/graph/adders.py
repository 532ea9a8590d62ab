"""Counting shared diagnoses of 256 columns at a time with bit-sliced counters, as LLVM vector code.

A *bit row* says for one code which columns (nodes) have it. The overlap of a node with all columns is the sum of
the bit rows of its codes. The sum is kept as *planes*: plane ``k`` holds bit ``k`` of every column's counter, so
one vector instruction adds to 256 counters. Three bits of one plane become one bit there and a carry into the
next plane with a full adder of five instructions (carry-save addition); a set of ``m`` codes needs ``m`` minus
the number of planes of them, which is the least possible.

The code is written as LLVM vector types because no loop over numpy arrays comes out like it: the planes stay in
registers from the first code to the comparison with the threshold. LLVM fits the vectors to the processor (one
AVX2 register, half an AVX-512 one, two NEON or SSE2 ones).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

LANES = 4
"""Words of 64 bits in a vector."""

COLUMNS_PER_VECTOR = 64 * LANES

MAX_PLANES = 16
"""Planes of the widest counter: overlaps up to 65,535 are exact."""

SCRATCH_STRIDE = (1 + MAX_PLANES) * LANES
"""Words that one vector takes in the scratch array: the mask of hits, then the planes."""

_PLANE_CHOICES = (5, 6, 8, MAX_PLANES)
_GROUP = 8
_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, LANES)

Value = Any
Builder = Any
Number = Any
"""A machine integer inside a kernel; numba gives it its type."""


def _word(number: int) -> Value:
    return ir.Constant(_WORD, number)


def _push(builder: Builder, pending: list[list[Value]], plane: int, bit: Value) -> None:
    """Add a bit to a plane; three waiting bits become one, and a carry for the next plane."""
    while len(pending) <= plane:
        pending.append([])
    pending[plane].append(bit)
    if len(pending[plane]) == 3:
        first, second, third = pending[plane]
        half = builder.xor(first, second)
        pending[plane] = [builder.xor(half, third)]
        carry = builder.or_(builder.and_(first, second), builder.and_(half, third))
        _push(builder, pending, plane + 1, carry)


def _settle(builder: Builder, pending: list[list[Value]], planes: int) -> list[Value]:
    """Bring every plane to one bit (half adders) and return exactly ``planes`` of them."""
    for plane in range(planes):
        if plane < len(pending) and len(pending[plane]) == 2:
            first, second = pending[plane]
            pending[plane] = [builder.xor(first, second)]
            if plane + 1 < planes:
                _push(builder, pending, plane + 1, builder.and_(first, second))
    zero = ir.Constant(_VECTOR, None)
    return [pending[plane][0] if plane < len(pending) and pending[plane] else zero for plane in range(planes)]


class _Emitter:
    """Emit the counting of one block of columns; one instance per place where it is inlined."""

    def __init__(self, builder: Builder, table: Value, offsets: Value, scratch: Value, size: Value) -> None:
        self.builder, self.table, self.offsets, self.scratch, self.size = builder, table, offsets, scratch, size

    def block(self, name: str) -> Value:
        return self.builder.function.append_basic_block(name)

    def bit_row(self, position: Value, first_word: Value) -> Value:
        """Load a vector of the bit row of the code at a position of the row's list of codes."""
        offset = self.builder.load(self.builder.gep(self.offsets, [position]))
        offset = self.builder.add(self.builder.zext(offset, _WORD), first_word)
        return self.builder.load(self.vector_pointer(self.table, offset), align=8)

    def vector_pointer(self, array: Value, index: Value) -> Value:
        return self.builder.bitcast(self.builder.gep(array, [index]), _VECTOR.as_pointer())

    def splat(self, word: Value) -> Value:
        vector = ir.Constant(_VECTOR, ir.Undefined)
        for lane in range(LANES):
            vector = self.builder.insert_element(vector, word, ir.Constant(ir.IntType(32), lane))
        return vector

    def count(self, planes: int, threshold: Value, vectors: Value, done: Value) -> tuple[Value, Value]:
        """Emit the loop over the vectors of a block, with counters of ``planes`` bits.

        Returns the bits that say which words hold a column of at least ``threshold``, and the basic block from which
        the code goes on to ``done``.
        """
        builder = self.builder
        entry = builder.block
        absent = [
            self.splat(builder.sub(builder.and_(builder.lshr(threshold, _word(plane)), _word(1)), _word(1)))
            for plane in range(planes)
        ]
        remainder = builder.urem(self.size, _word(_GROUP))
        head, groups, body = self.block("vector"), self.block("groups"), self.block("group")
        compare, store, following = self.block("compare"), self.block("store"), self.block("next")
        builder.branch(head)

        builder.position_at_end(head)
        vector, hits = builder.phi(_WORD), builder.phi(_WORD)
        vector.add_incoming(_word(0), entry)
        hits.add_incoming(_word(0), entry)
        first_word = builder.mul(vector, _word(LANES))
        starts = [(self.block(f"first_{number}"), number) for number in range(_GROUP)]
        switch = builder.switch(remainder, starts[0][0])
        for block, number in starts[1:]:
            switch.add_case(_word(number), block)

        builder.position_at_end(groups)
        position = builder.phi(_WORD)
        counters = [builder.phi(_VECTOR) for _ in range(planes)]
        builder.cbranch(builder.icmp_unsigned("<", position, self.size), body, compare)
        for block, number in starts:
            builder.position_at_end(block)
            pending: list[list[Value]] = []
            for place in range(number):
                _push(builder, pending, 0, self.bit_row(_word(place), first_word))
            position.add_incoming(_word(number), block)
            for counter, value in zip(counters, _settle(builder, pending, planes), strict=True):
                counter.add_incoming(value, block)
            builder.branch(groups)

        builder.position_at_end(body)
        pending = [[counter] for counter in counters]
        for place in range(_GROUP):
            _push(builder, pending, 0, self.bit_row(builder.add(position, _word(place)), first_word))
        for counter, value in zip(counters, _settle(builder, pending, planes), strict=True):
            counter.add_incoming(value, body)
        position.add_incoming(builder.add(position, _word(_GROUP)), body)
        builder.branch(groups)

        builder.position_at_end(compare)
        # The carry of counter + not(threshold) + 1 runs out at the top exactly where counter >= threshold.
        reached = builder.or_(counters[0], absent[0])
        for counter, missing in zip(counters[1:], absent[1:], strict=True):
            either = builder.and_(missing, builder.or_(counter, reached))
            reached = builder.or_(builder.and_(counter, reached), either)
        nonzero = builder.icmp_unsigned("!=", reached, ir.Constant(_VECTOR, None))
        lanes = builder.bitcast(nonzero, ir.IntType(LANES))
        builder.cbranch(builder.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0)), store, following)

        builder.position_at_end(store)
        place = builder.mul(vector, _word(SCRATCH_STRIDE))
        for number, value in enumerate([reached, *counters]):
            pointer = self.vector_pointer(self.scratch, builder.add(place, _word(number * LANES)))
            builder.store(value, pointer, align=8)
        marked = builder.or_(hits, builder.shl(builder.zext(lanes, _WORD), first_word))
        builder.branch(following)

        builder.position_at_end(following)
        result = builder.phi(_WORD)
        result.add_incoming(hits, compare)
        result.add_incoming(marked, store)
        next_vector = builder.add(vector, _word(1))
        vector.add_incoming(next_vector, following)
        hits.add_incoming(result, following)
        builder.cbranch(builder.icmp_unsigned("<", next_vector, vectors), head, done)
        return result, following


def _count_block(
    typing_context: Any,
    table: Any,
    base: Any,
    offsets: Any,
    start: Any,
    size: Any,
    threshold: Any,
    scratch: Any,
    vectors: Any,
) -> tuple[Any, Callable[..., Value]]:
    """Count the overlaps of one set of codes with the columns of one block.

    ``count_block(table, base, offsets, start, size, threshold, scratch, vectors)``: the bit row of the code at
    ``offsets[start + p]`` begins at ``table[base + offsets[start + p]]``; ``vectors`` vectors (at most 64 words) of it
    are read. Returns a number with bit ``w`` set where a column of word ``w`` shares at least ``threshold`` codes; for
    the vectors of those words, and only those, the mask of such columns and the planes are in ``scratch``.
    """

    def generate(context: Any, builder: Builder, signature: Any, arguments: Any) -> Value:
        def data(number: int) -> Value:
            array = context.make_array(signature.args[number])(context, builder, arguments[number])
            return array.data

        emitter = _Emitter(
            builder,
            table=builder.gep(data(0), [arguments[1]]),
            offsets=builder.gep(data(2), [arguments[3]]),
            scratch=data(6),
            size=arguments[4],
        )
        done = emitter.block("counted")
        results = []
        for planes in _PLANE_CHOICES:
            narrow, wider = emitter.block(f"planes_{planes}"), emitter.block("wider")
            fits = builder.icmp_unsigned("<", arguments[4], _word(1 << planes))
            builder.cbranch(fits, narrow, wider)
            builder.position_at_end(narrow)
            results.append(emitter.count(planes, arguments[5], arguments[7], done))
            builder.position_at_end(wider)
        # A larger set never comes here: it is refused where the rows are made.
        results.append((_word(0), builder.block))
        builder.branch(done)
        builder.position_at_end(done)
        hits = builder.phi(_WORD)
        for value, block in results:
            hits.add_incoming(value, block)
        return hits

    whole = types.intp
    return types.uint64(table, whole, offsets, whole, whole, whole, scratch, whole), generate


def _trailing_zeros(typing_context: Any, word: Any) -> tuple[Any, Callable[..., Value]]:
    """Return the number of the lowest set bit of a word that is not zero."""

    def generate(context: Any, builder: Builder, signature: Any, arguments: Any) -> Value:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


def _population_count(typing_context: Any, word: Any) -> tuple[Any, Callable[..., Value]]:
    """Return how many bits of a word are set."""

    def generate(context: Any, builder: Builder, signature: Any, arguments: Any) -> Value:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


count_block: Callable[..., Any] = intrinsic(_count_block)
trailing_zeros: Callable[..., Any] = intrinsic(_trailing_zeros)
population_count: Callable[..., Any] = intrinsic(_population_count)


@register_jitable
def planes_of(size: Number) -> Number:
    """Return how many planes the counters of a set of ``size`` codes have.

    >>> planes_of(22), planes_of(63), planes_of(64)
    (5, 6, 8)
    """
    if size < 32:
        return 5
    if size < 64:
        return 6
    return 8 if size < 256 else MAX_PLANES


@register_jitable
def scratch_place(word: Number) -> Number:
    """Return where the mask of hits of a word is in the scratch array; plane ``k`` is ``(k + 1) * LANES`` further."""
    return word // LANES * SCRATCH_STRIDE + word % LANES
