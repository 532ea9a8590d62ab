"""No count of people under 11 is shown, and none follows from what is shown."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.plain_text import is_small, shown_count
from patients_like_me.records.flow import Flow
from patients_like_me.report.small_counts import Group, flow_to_show, hidden_shares, shown_share

SIZES = st.integers(0, 40)


def group(size: int, first: int = 0) -> Group:
    return Group(size, frozenset(range(first, first + size)))


def flow_of(stations: list[tuple[int, int]]) -> Flow:
    flow = Flow()
    for number, (patients, visits) in enumerate(stations):
        flow.add(f"filter {number}", patients=patients, visits=visits)
    return flow


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    patients, visits = 500, 900
    stations = [(patients, visits)]
    for _ in range(draw(st.integers(0, 6))):
        patients -= draw(st.integers(0, 30))
        visits -= draw(st.integers(0, 30))
        stations.append((patients, visits))
    return flow_of(stations)


@given(flows())
def test_no_station_of_a_flow_leaves_out_a_few(flow: Flow) -> None:
    shown, filters = flow_to_show(flow)
    for one, other in combinations(shown.steps, 2):
        if abs(shown.steps.index(one) - shown.steps.index(other)) == 1:
            assert not is_small(one.patients - other.patients)
            assert not is_small(one.visits - other.visits)
    assert (shown.steps[-1].patients, shown.steps[-1].visits) == (flow.steps[-1].patients, flow.steps[-1].visits)
    assert [name for names in filters for name in names] == [step.name for step in flow.steps]


def test_a_flow_with_large_filters_stays_as_it_is() -> None:
    flow = flow_of([(500, 900), (500, 900), (400, 700)])
    assert flow_to_show(flow)[0].steps == flow.steps


def test_a_flow_that_leaves_out_a_few_shows_the_cohort_alone() -> None:
    shown, filters = flow_to_show(flow_of([(500, 900), (499, 897)]))
    assert [(step.name, step.visits) for step in shown.steps] == [("the cohort", 897)]
    assert filters == [("filter 0", "filter 1")]


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=6))
def test_hidden_shares_cannot_be_worked_out(sizes: list[tuple[int, int]]) -> None:
    cells = {}
    for number, (one, other) in enumerate(sizes):
        cells[str(number)] = (group(one, 1000 * number), group(other, 1000 * number + 500))
    hidden = hidden_shares(cells)
    for name, parts in cells.items():
        if name not in hidden:
            assert not any(part.is_small for part in parts)
    if hidden and len(hidden) < len(cells):
        assert len(hidden) > 1
        for side in (0, 1):
            assert not is_small(sum(cells[name][side].instances for name in hidden))


def test_strata_that_are_hidden_already_stay_hidden() -> None:
    cells = {name: (group(30), group(30)) for name in "abc"}
    assert hidden_shares(cells) == frozenset()
    assert "b" in hidden_shares(cells, {"b"})
    assert len(hidden_shares(cells, {"b"})) == 2


def test_many_instances_of_few_patients_are_a_small_group() -> None:
    assert Group(90, frozenset(range(4))).is_small
    assert not Group(0, frozenset()).is_small
    assert shown_share(Group(90, frozenset(range(4))), group(100)) == "hidden"
    assert shown_share(group(0), group(100)) == "0.0 %"
    assert shown_share(group(25), group(75)) == "25.0 %"


def test_counts() -> None:
    assert [shown_count(number) for number in (0, 1, 10, 11)] == ["0", "fewer than 11", "fewer than 11", "11"]
