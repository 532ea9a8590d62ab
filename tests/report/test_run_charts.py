"""The pictures of the run report: well-formed, named, within their frame, told apart without colour."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.report.run_charts import Series, interval_bar, line_chart, ticks

NAMESPACE = "{http://www.w3.org/2000/svg}"


def chart(*series: Series, **options: object) -> ET.Element:
    defaults: dict[str, object] = {"title": "t", "across": "x", "up": "y", "x_ticks": (1, 2, 3), "zero": True}
    return ET.fromstring(line_chart(series, **(defaults | options)))  # type: ignore[arg-type]  # noqa: S314


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e3))
def test_ticks_are_round_and_lie_inside(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 1 <= len(found) <= 8
    assert all(low - span * 1e-6 <= mark <= low + span * (1 + 1e-6) for mark in found)
    assert found == sorted(set(found))


def test_names_are_escaped_and_every_line_has_its_own_look() -> None:
    lines = [Series(f"<b>{number}</b>", ((1, number), (2, number + 1))) for number in range(5)]
    picture = chart(*lines, title='"<script>"')
    assert picture.get("role") == "img"
    assert picture.get("aria-label") == '"<script>"'
    words = [text.text for text in picture.iter(f"{NAMESPACE}text")]
    assert [word for word in words if word and word.startswith("<b>")] == [line.name for line in lines]
    dashes = [
        path.get("stroke-dasharray") for path in picture.iter(f"{NAMESPACE}path") if path.get("stroke-width") == "1.8"
    ]
    assert len(set(dashes)) == 5


@pytest.mark.parametrize("values", [(0.0, 0.0), (1e-7, 2e-7), (-500.0, 3.0)])
def test_everything_lies_in_the_frame(values: tuple[float, float]) -> None:
    series = Series("a", ((1, values[0]), (3, values[1])), ((1, values[0] - 0.1, values[0] + 0.1),))
    picture = chart(series)
    _, _, width, height = map(float, str(picture.get("viewBox")).split())
    for path in picture.iter(f"{NAMESPACE}path"):
        numbers = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", str(path.get("d")))
        assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in numbers)


def test_an_interval_bar_names_its_numbers() -> None:
    picture = ET.fromstring(interval_bar(0.5, 0.4, 0.6, (0.4, 0.6), 0.45))  # noqa: S314
    assert picture.get("aria-label") == "0.500, 0.400 to 0.600"
    assert ET.fromstring(interval_bar(0.5, 0.5, 0.5, (0.5, 0.5), None)) is not None  # noqa: S314
