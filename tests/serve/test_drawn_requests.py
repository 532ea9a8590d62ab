"""Requests drawn from the OpenAPI document and then damaged: refused in words or answered, never a failure.

``PLM_DRAWN_REQUESTS=2000 python -m pytest tests/serve/test_drawn_requests.py`` draws that many.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from tempfile import gettempdir
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patients_like_me.serve import answers

BUDGET = int(os.environ.get("PLM_DRAWN_REQUESTS", "60"))
TALLY: Counter[int] = Counter()
_WORDS = st.sampled_from(
    ["", " ", "sepsis", "own:sepsis", "icd10:I50.9", "ccs:108", "atc:C03CA01", ":", "::", "x" * 300, "\u0000", "\u202e",
     "..", "R1", "P1", "N1", "P0", "2024-05-03", "9999-99-99", "0001-01-01", "-1", "1e999", "Bundle", "Patient"]
)  # fmt: skip
_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), _WORDS, st.text(max_size=8))
_ANYTHING = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def of_schema(schema: dict[str, Any], parts: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Return values of a schema, most of them within its limits."""
    if "$ref" in schema:
        return of_schema(parts[schema["$ref"].rsplit("/", 1)[-1]], parts, depth + 1)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return st.one_of([of_schema(each, parts, depth + 1) for each in schema[word]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        needed = set(schema.get("required", ()))
        fields = {name: of_schema(each, parts, depth + 1) for name, each in schema["properties"].items()}
        some = {name: each for name, each in fields.items() if name not in needed}
        return st.fixed_dictionaries({name: fields[name] for name in needed}, optional=some)
    if kind == "object":
        return st.dictionaries(st.sampled_from(["resource", "resourceType", "id"]), _ANYTHING, max_size=3)
    if kind == "array":
        return st.lists(
            of_schema(schema.get("items", {}), parts, depth + 1), min_size=schema.get("minItems", 0), max_size=3
        )
    if kind == "integer":
        return st.integers(int(schema.get("minimum", -5)), int(schema.get("maximum", 200)))
    if kind == "number":
        return st.floats(0.01, 0.99)
    if kind == "string" and "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True)
    if kind == "string" and schema.get("format") in ("date", "date-time"):
        return st.dates().map(str)
    return _WORDS if kind == "string" else st.none() if kind == "null" else _ANYTHING


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """Replace something in a value by anything."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(value)))
        changed = dict(value)
        how = draw(st.integers(0, 2))
        if how == 0:
            del changed[name]
        elif how == 1:
            changed[draw(st.text(max_size=5))] = draw(_ANYTHING)
        else:
            changed[name] = draw(damaged(changed[name]))
        return changed
    if isinstance(value, list) and value and draw(st.booleans()):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], draw(damaged(value[place])), *value[place + 1 :]]
    return draw(_ANYTHING)


@settings(max_examples=BUDGET, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_request_fails(served: Any, caplog: pytest.LogCaptureFixture, data: st.DataObject) -> None:
    document = served.app.openapi()
    parts = document["components"]["schemas"]
    routes = [
        (method, path, about)
        for path, methods in sorted(document["paths"].items())
        for method, about in methods.items()
    ]
    method, path, about = data.draw(st.sampled_from(routes))
    content = about.get("requestBody", {}).get("content", {}).get("application/json")
    sent: dict[str, Any] = {}
    if content is not None:
        body = data.draw(of_schema(content["schema"], parts))
        if data.draw(st.booleans()):
            body = data.draw(damaged(body))
        text = json.dumps(body)
        if data.draw(st.integers(0, 9)) == 0:
            place = data.draw(st.integers(0, len(text)))
            text = text[:place] + data.draw(st.text(max_size=3)) + text[place + 1 :]
        sent = {"content": text.encode("utf-8", "surrogatepass"), "headers": {"content-type": "application/json"}}
    for given_parameter in about.get("parameters", []):
        value = data.draw(of_schema(given_parameter["schema"], parts) | _ANYTHING)
        if given_parameter["in"] == "path":
            path = path.replace("{" + given_parameter["name"] + "}", "x" if value in (None, "") else str(value)[:50])
        elif value is not None:
            sent.setdefault("params", {})[given_parameter["name"]] = str(value)
    from urllib.parse import quote

    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        answer = served.client.request(method, quote(path.encode("utf-8", "replace")), **sent)

    TALLY[answer.status_code] += 1
    assert answer.status_code < 500, answer.text
    assert "Traceback" not in answer.text + caplog.text
    if answer.status_code >= 400:
        problem = answers.ProblemOut.model_validate(answer.json())
        assert problem.detail
        assert problem.status == answer.status_code
        assert gettempdir() not in answer.text
        assert "site-packages" not in answer.text


def test_both_answers_and_refusals_were_drawn() -> None:
    if not TALLY:
        pytest.skip("the requests were drawn in another process")
    # Shown with -rP: how many of each.
    print(dict(TALLY))  # noqa: T201
    assert any(status < 300 for status in TALLY)
    assert any(status == 422 for status in TALLY)
