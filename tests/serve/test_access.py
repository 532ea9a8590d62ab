"""Who may ask: tokens, sessions, roles, hosts and sites."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from patients_like_me.errors import PlmError
from patients_like_me.serve.access import COOKIE, IDLE_SECONDS, Gate, TokenFile
from patients_like_me.serve.responses import POLICY
from patients_like_me.serve.server import guard_settings

HOST = "127.0.0.1:8765"
OURS = f"http://{HOST}"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - it is refused


def test_without_a_token_only_health_answers(served: Any) -> None:
    client = served.other_client()

    assert client.get("/api/v1/health").json() == {"status": "ok", "version": served.state.about.version}
    for path in ("/api/v1/bank", "/api/v1/worklist", "/api/v1/openapi.json", "/cds-services", "/", "/nothing"):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert answer.json()["detail"].startswith("open the address")
    assert served.client.get("/api/v1/health").json()["system"] == "patients_like_me"


@pytest.mark.parametrize("given", ["Bearer wrong", "Bearer ", "Basic b3duZXI6eA==", "nonsense", "Bearer \xe9\xe9"])
def test_a_wrong_token_is_refused(served: Any, given: str) -> None:
    answer = served.other_client().get("/api/v1/bank", headers={"authorization": given.encode("latin-1")})

    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_printed_address_gives_a_cookie_that_scripts_cannot_read(served: Any) -> None:
    client = served.other_client()
    answer = client.get(f"/api/v1/health?token={served.token}&a=1")

    assert answer.status_code == 303
    # The token is gone from the address, the rest stays.
    assert answer.headers["location"] == "/api/v1/health?a=1"
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
    assert served.token.lower() not in cookie
    assert client.get("/api/v1/health").json()["task"] == "readmission"
    assert served.other_client().get("/?token=wrong").status_code == 401


def test_two_servers_of_one_machine_do_not_sign_each_other_out() -> None:
    # A browser keeps the cookies of a machine, not of a port.
    assert guard_settings("127.0.0.1", 8765, None).cookie != guard_settings("127.0.0.1", 8766, None).cookie
    # Only this very host can set a cookie whose name starts so.
    assert guard_settings("127.0.0.1", 8765, "plm.hospital.example").cookie.startswith("__Host-")


def test_a_link_from_another_program_leads_to_the_page_after_one_click(served: Any) -> None:
    # The card of an electronic record links to a patient; the browser follows without the strict cookie.
    page = served.other_client(accept="text/html").get("/patients/P1")
    assert page.status_code == 401
    assert '<a href="">open this page</a>' in page.text
    assert served.other_client().get("/assets/style.css").status_code == 200
    assert served.other_client().get("/assets/what_if.js").status_code == 401


def test_a_damaged_file_of_tokens_lets_only_the_starter_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(TokenFile(tmp_path / "tokens.json"))
    token = gate.file.add("ward-3", ["read"]) if gate.file is not None else ""
    (tmp_path / "tokens.json").write_text("{")

    assert gate.by_token(gate.own) is not None
    assert gate.by_token(token) is None
    assert "cannot be read" in caplog.text
    assert str(tmp_path) not in caplog.text


def test_the_redirect_stays_on_this_server(served: Any) -> None:
    answer = served.other_client().get(f"{OURS}//evil.example/x?token={served.token}")

    assert answer.headers["location"].startswith("/evil.example")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:8765.evil.example", "localhost:9", "", "127.0.0.1"])
def test_another_host_is_refused(served: Any, host: str) -> None:
    answer = served.client.get("/api/v1/health", headers={"host": host})

    assert answer.status_code == 421
    assert "host" in answer.json()["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site"},
        # A form of another site: neither header, but the cookie of a session.
        {},
    ],
)
def test_a_cross_site_request_with_a_session_is_refused(served: Any, headers: dict[str, str]) -> None:
    client = served.other_client()
    client.get(f"/?token={served.token}")
    body = {"patient": {"age": 60, "visits": [{"diagnoses": []}]}, "change": {"tau": 3}}

    assert client.post("/api/v1/what-if", json=body, headers=headers).status_code == 403
    # The same from a page of ours is answered.
    assert client.post("/api/v1/what-if", json=body, headers={"origin": OURS}).status_code == 200


def test_a_link_from_another_site_is_followed_but_a_picture_is_not(served: Any) -> None:
    client = served.client
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}

    assert client.get("/api/v1/health", headers=link).status_code == 200
    assert client.get("/api/v1/health", headers={**link, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.get("/api/v1/health", headers={**link, "sec-fetch-dest": "iframe"}).status_code == 403
    assert client.options("/api/v1/predict", headers={"origin": "https://evil.example"}).status_code in (403, 405)


def test_every_answer_has_the_headers_of_the_policy(served: Any) -> None:
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in POLICY
    assert not [word for word in ("unsafe", "sha256", "http", "*") if word in POLICY]
    pages = [served.client.get(path, headers={"accept": "text/html"}) for path in ("/", "/patients/P1", "/x")]
    for answer in (served.client.get("/api/v1/health"), served.other_client().get("/x"), *pages):
        policy = answer.headers.get_list("content-security-policy")
        assert policy == [POLICY]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "server" not in answer.headers


def test_roles_decide_what_a_token_may_do(served: Any) -> None:
    file = served.gate.file
    reader = file.add("reader", ["read"])
    asker = file.add("asker", ["read", "what-if"])
    body = {"visits": [{"diagnoses": ["own:sepsis"]}]}
    name = served.client.post("/api/v1/patients", json=body).json()["pseudonyms"][0]
    for token, what_if, upload in ((reader, 403, 403), (asker, 200, 403)):
        client = served.other_client(authorization=f"Bearer {token}")
        assert client.get("/api/v1/bank").status_code == 200
        assert client.post("/api/v1/explain", json={"pseudonym": name}).status_code == 200
        change = {"pseudonym": name, "change": {"remove": ["sepsis"]}}
        assert client.post("/api/v1/what-if", json=change).status_code == what_if
        for path, sent in (("predict", body), ("explain", {"patient": body}), ("patients", body)):
            assert client.post(f"/api/v1/{path}", json=sent).status_code == upload
        assert client.delete(f"/api/v1/patients/{name}").status_code == 403
    # A token that is removed ends its session too.
    browser = served.other_client()
    browser.get(f"/?token={reader}")
    assert browser.get("/api/v1/bank").status_code == 200
    file.remove("reader")
    assert browser.get("/api/v1/bank").status_code == 401
    assert served.other_client(authorization=f"Bearer {reader}").get("/api/v1/bank").status_code == 401
    file.remove("asker")


def test_tokens_are_kept_as_hashes(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "serve" / "tokens.json")
    token = file.add("ward-3", ["what-if", "read"])

    text = file.path.read_text()
    assert token not in text
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [(each.name, each.roles) for each in file.tokens()] == [("ward-3", ("read", "what-if"))]
    assert Gate(TokenFile(file.path)).by_token(token) is not None
    for wrong in (["admin"], ["what-if"]):
        with pytest.raises(PlmError):
            file.add("other", wrong)
    with pytest.raises(PlmError, match="already"):
        file.add("ward-3", ["read"])
    with pytest.raises(PlmError, match="cannot be the name"):
        file.add("a\nb", ["read"])
    file.path.write_text(json.dumps({"tokens": [{"name": 1}]}))
    with pytest.raises(PlmError, match="damaged"):
        file.tokens()


def test_an_idle_session_ends() -> None:
    now = 0.0
    gate = Gate(clock=lambda: now)
    value = gate.open_session(gate.own)
    assert value is not None
    now = IDLE_SECONDS - 1
    assert gate.by_session(value) is not None
    now += IDLE_SECONDS + 1
    assert gate.by_session(value) is None
    assert COOKIE.startswith("plm")


def test_an_open_address_needs_a_proxy(make_served: Callable[..., Any]) -> None:
    del make_served
    for host in (EVERYWHERE, "192.168.1.2", "::"):
        with pytest.raises(PlmError, match="--behind-proxy"):
            guard_settings(host, 80, None)
    settings = guard_settings(EVERYWHERE, 80, "PLM.hospital.example")
    assert settings.hosts == {"plm.hospital.example"}
    assert settings.secure
    assert settings.origins == {"https://plm.hospital.example"}
    with pytest.raises(PlmError, match="host name"):
        guard_settings(EVERYWHERE, 80, "a b/c")
