"""The ego graph: no label runs into another, darkness and distance follow strength, grey is enough."""

from __future__ import annotations

import re
from itertools import combinations
from math import dist
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as some

from patients_like_me.report.contrast import contrast, luminance
from patients_like_me.report.ego_graph import MOST_NODES, Box, EgoNode, _labels, draw_ego_graph, draw_legend
from patients_like_me.report.text_width import fitted, text_width, wrapped

SVG = "{http://www.w3.org/2000/svg}"
DOES = ("lowers the risk by 12.3 points", "hardly raises the risk", "lowers the probabilities of these drugs")
printed = some.text(some.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=40)
names = some.lists(printed, max_size=6).map(" ".join)
nodes = some.lists(
    some.builds(
        EgoNode,
        name=some.just("R10"),
        shown=some.sampled_from(DOES),
        strength=some.floats(0, 1),
        sign=some.sampled_from([-1, 0, 1]),
        outcome=some.none() | names,
        codes=some.lists(some.tuples(names, some.booleans()), max_size=5).map(tuple),
    ),
    max_size=MOST_NODES,
)


def discs(picture: str) -> list[tuple[float, float, str]]:
    root = ET.fromstring(picture)  # noqa: S314
    found = [item for item in root.iter(f"{SVG}circle") if item.get("r") == "19"]
    return [(float(item.get("cx", "0")), float(item.get("cy", "0")), item.get("fill", "")) for item in found]


@pytest.mark.parametrize("words", DOES)
def test_what_a_reference_does_is_never_cut(words: str) -> None:
    picture = draw_ego_graph([EgoNode("R10", words, 1.0, 1)], title="t")
    assert "…" not in picture
    assert (
        f"R10 {words}".split() == " ".join(label for label, _ in _labels([EgoNode("R10", words, 1.0)])[0].lines).split()
    )


@given(nodes)
def test_no_label_runs_into_another_or_out_of_the_picture(chosen: list[EgoNode]) -> None:
    picture = draw_ego_graph(chosen, title="t")
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)[0])
    boxes = [label.box for label in _labels(chosen[:MOST_NODES])]
    for first, second in combinations(boxes, 2):
        assert not first.overlaps(second)
    spots = discs(picture)
    assert len(spots) == len(chosen)
    for box in boxes:
        assert box.left >= 0
        assert box.top >= 0
        assert box.right <= width
        assert box.bottom <= height
        for x, y, _ in spots:
            assert not box.overlaps(Box(x - 20, y - 20, x + 20, y + 20))
    for first_spot, second_spot in combinations(spots, 2):
        assert dist(first_spot[:2], second_spot[:2]) > 40


@given(nodes)
def test_the_narrow_picture_keeps_its_discs_apart(chosen: list[EgoNode]) -> None:
    spots = discs(draw_ego_graph(chosen, title="t", labels=False))
    for first, second in combinations(spots, 2):
        assert dist(first[:2], second[:2]) > 40
    assert all(19 <= x <= 341 and 19 <= y <= 341 for x, y, _ in spots)


@given(some.lists(some.floats(0, 1), min_size=2, max_size=10))
def test_stronger_is_closer_and_darker(strengths: list[float]) -> None:
    picture = draw_ego_graph([EgoNode(f"R{n}", "", value) for n, value in enumerate(strengths)], title="t")
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)[0])
    spots = discs(picture)
    for (first, one), (second, other) in combinations(zip(strengths, spots, strict=True), 2):
        if first > second:
            assert dist(one[:2], (width / 2, height / 2)) <= dist(other[:2], (width / 2, height / 2)) + 0.2
            assert luminance(one[2]) <= luminance(other[2])


@pytest.mark.parametrize("strength", [step / 20 for step in range(21)])
def test_names_on_discs_can_be_read(strength: float) -> None:
    picture = draw_ego_graph([EgoNode("R1", "", strength)], title="t")
    ink = re.findall(r'fill="(#\w{6})">R1<', picture)[0]
    assert contrast(discs(picture)[0][2], ink) >= 4.5


def test_the_sign_is_a_line_style() -> None:
    raises = draw_ego_graph([EgoNode("R1", "", 1.0, 1)], title="t")
    lowers = draw_ego_graph([EgoNode("R1", "", 1.0, -1)], title="t")
    assert 'stroke-dasharray="7 5"' not in raises
    assert 'stroke-dasharray="7 5"' in lowers


def test_tied_codes_are_marked_not_only_coloured() -> None:
    picture = draw_ego_graph(
        [EgoNode("R1", "", 1.0, 1, codes=(("50: Diabetes", True), ("98: other", False)))], title="t"
    )
    assert "◆ 50: Diabetes" in picture
    assert "◆ 98" not in picture


def test_hostile_names_are_escaped_and_the_picture_stays_one() -> None:
    node = EgoNode("R1", "+1", 1.0, 1, "<b>&", (("</svg><script>alert(1)</script>", True),))
    picture = draw_ego_graph([node], title="<title>")
    ET.fromstring(picture)  # noqa: S314
    assert "<script" not in picture


def test_legends_are_pictures_of_their_own() -> None:
    signed, plain = draw_legend("important", moved="the risk"), draw_legend("shared diagnoses", codes=False)
    for picture in (signed, plain):
        ET.fromstring(picture)  # noqa: S314
    assert "lowers the risk" in signed
    assert "lowers" not in plain


@given(names, some.integers(30, 300))
def test_wrapped_lines_keep_their_width(text: str, width: int) -> None:
    lines = wrapped(text, 13, width, lines=2)
    assert len(lines) <= 2
    assert all(text_width(line, 13) <= width for line in lines)
    assert text_width(fitted(text, 13, width), 13) <= max(width, text_width(text[:1] + "…", 13))
