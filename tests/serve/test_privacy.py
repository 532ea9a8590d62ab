"""What is written down: the access log has names and pseudonyms, ordinary logs have no patient at all."""

from __future__ import annotations

import json
import logging
import stat
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

PERSON = {
    "id": "smith-4711",
    "age": 77,
    "visits": [{"id": "visit-0815", "admission": "2031-12-24", "diagnoses": ["own:sepsis", "own:very-rare-word"]}],
}


def test_logs_hold_no_id_date_or_text(served: Any, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    before = served.log.read_text() if served.log.exists() else ""
    with caplog.at_level(logging.DEBUG):
        name = served.client.post("/api/v1/patients", json=PERSON).json()["pseudonyms"][0]
        served.client.post("/api/v1/predict", json=PERSON)
        served.client.post("/api/v1/explain", json={"pseudonym": name})
        served.client.post("/api/v1/explain", json={"patient": {**PERSON, "age": "seventy"}})
        served.client.post("/api/v1/what-if", json={"pseudonym": name, "change": {"remove": ["sepsis"]}})
        served.client.get("/api/v1/codes", params={"q": "very-rare-word"})
        served.client.post("/api/v1/explain", json={"pseudonym": "P1"})
    # The client of this test logs the addresses it asks for; the server does not.
    own = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
    ordinary = "\n".join(own) + "".join(capfd.readouterr())
    added = served.log.read_text()[len(before) :]
    for secret in ("smith-4711", "visit-0815", "2031-12-24", "very-rare-word", "seventy"):
        assert secret not in ordinary
        assert secret not in added
    lines = [json.loads(line) for line in added.splitlines()]
    assert {"time", "who", "what", "pseudonym", "run", "cohort", "status"} == set(lines[0])
    # P1 means somebody only together with the cohort of that day.
    assert {line["cohort"] for line in lines} == {served.state.patients.today.hash[:12]}
    assert [(line["who"], line["what"], line["pseudonym"]) for line in lines] == [
        ("owner", "added", name),
        ("owner", "predict", None),
        ("owner", "explain", name),
        ("owner", "what-if", name),
        ("owner", "explain", "P1"),
    ]
    assert stat.S_IMODE(served.log.stat().st_mode) == 0o600


def test_who_looked_is_the_name_of_the_token(served: Any) -> None:
    token = served.gate.file.add("ward-3", ["read"])
    served.other_client(authorization=f"Bearer {token}").post("/api/v1/explain", json={"pseudonym": "P2"})
    served.gate.file.remove("ward-3")

    last = json.loads(served.log.read_text().splitlines()[-1])
    assert (last["who"], last["pseudonym"]) == ("ward-3", "P2")
    assert token not in served.log.read_text()


def test_an_error_repeats_nothing_of_the_record(served: Any) -> None:
    answer = served.client.post("/api/v1/predict", json={"id": "smith-4711", "visits": [{"age": "seventy"}]})

    assert answer.status_code == 422
    assert "smith" not in answer.text
    assert "seventy" not in answer.text
