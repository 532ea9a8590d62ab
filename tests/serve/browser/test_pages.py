"""The pages as text: who may see what, hostile names, plain words for what is missing, and forms without a script."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from report.page_checks import Page
from serve.conftest import Served
from tiny_runs import DRUGS

from patients_like_me.evaluation.predictions import read_predictions
from patients_like_me.explanation.explanation import State, WhatIf
from patients_like_me.report.run_report import RunReport, Section, Table, Text
from patients_like_me.serve.answers import WorklistOut
from patients_like_me.serve.bank_view import BankView, CheckLine, CheckView, CodeLine
from patients_like_me.serve.listing import Listing
from patients_like_me.serve.model_state import Reach
from patients_like_me.serve.pages.patient_view import in_words
from patients_like_me.serve.pages.rendering import environment, error_page, stylesheet
from patients_like_me.serve.pages.small_charts import outcome_chart, range_chart
from patients_like_me.serve.shapes import BUNDLE
from patients_like_me.serve.views import WITHOUT_CODES
from patients_like_me.serve.worklist import Ranges

HTML = {"accept": "text/html"}
ROWS = "age,71\nsex,F\ndiagnosis/own,sepsis,1\ndiagnosis/own,fever,1"


def shown(answer: Any, status: int = 200) -> Page:
    """Check a page's shape: every tag closed, no inline script, style or handler, and return it."""
    assert answer.status_code == status, answer.text[:400]
    page = Page(answer.text)
    names = [tag for tag, _ in page.tags]
    assert all(names.count(tag) == 1 for tag in ("html", "head", "body", "main", "h1"))
    assert "style" not in names
    assert len(set(page.ids)) == len(page.ids)
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("src", "href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("/", "#", "data:,")), (tag, value)
            assert value is None or not value.startswith("//")
    assert "unsafe" not in answer.headers["content-security-policy"]
    return page


@pytest.mark.parametrize("path", ["/", "/patients/P1", "/new", "/bank"])
def test_every_page_is_well_formed_and_has_nothing_inline(path: str, served: Served) -> None:
    page = shown(served.client.get(path, headers=HTML))
    assert "Everything stays on this machine" in page.words
    assert [attributes for _, attributes in page.tags if attributes.get("aria-current") == "page"] or path[1:2] == "p"


def test_scripts_and_styles_come_by_name_alone(served: Served) -> None:
    for name, kind in (("style.css", "text/css"), ("run.css", "text/css"), ("what_if.js", "text/javascript")):
        found = served.client.get(f"/assets/{name}")
        assert found.status_code == 200
        assert found.headers["content-type"].startswith(kind)
    for name in ("..%2fstate.py", "%2e%2e%2fpages%2fassets.py", "what_if.py", "style.css.jinja"):
        assert served.client.get(f"/assets/{name}").status_code == 404
    assert "url(" not in stylesheet("patient") + stylesheet("run")


def test_who_may_only_read_sees_no_what_if_and_no_form(served: Served, make_reader: Callable[[], Any]) -> None:
    client = make_reader()
    page = shown(client.get("/patients/P1", headers=HTML))
    assert "what-if" not in page.ids
    assert "/new" not in page.links
    assert client.get("/new", headers=HTML).status_code == 403
    assert client.post("/patients/P1/what-if", json={"drop": ["R1"]}).status_code == 403


@pytest.fixture
def make_reader(served: Served) -> Callable[[], Any]:
    """Return a function that makes a client with a token that may read and nothing else."""

    def make() -> Any:
        name = f"reader-{len(served.gate.file.tokens())}"
        token = served.gate.file.add(name, ["read"])
        return served.other_client(authorization=f"Bearer {token}")

    return make


def test_the_list_is_searched_by_pseudonym_and_not_by_id_unless_ids_are_shown(served: Served) -> None:
    everyone = shown(served.client.get("/", headers=HTML))
    assert "patient id" not in everyone.words
    subject = served.state.patients.get("P1").subject_id
    assert shown(served.client.post("/", data={"search": "P1"}, headers=HTML)).words.count("P1") >= 1
    assert "Nobody is found" in shown(served.client.post("/", data={"search": subject}, headers=HTML)).words
    assert f" {subject} " not in everyone.words


def test_where_ids_are_shown_a_patient_is_found_by_id(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.state, "show_ids", True)
    monkeypatch.setattr(served.state, "listing", Listing(served.state))
    subject = served.state.patients.get("P3").subject_id
    page = shown(served.client.post("/", data={"search": subject}, headers=HTML))
    assert "/patients/P3" in page.links
    assert f"patient {subject}" in page.words
    assert "Nobody is found" not in page.words


def test_a_patient_unlike_everybody_in_the_bank_is_flagged_with_the_reason(served: Served) -> None:
    def added(*codes: str) -> Page:
        given = {"visits": [{"diagnoses": [f"own:{code}" for code in codes]}]}
        return shown(served.client.get(f"/patients/{served.state.add_patients(given)[0]}", headers=HTML))

    assert (
        "Outside the bank's range: nobody in the bank has most of these" in added("sepsis", "snakebite", "rabies").words
    )
    assert "Outside the bank's range" not in added("sepsis", "snakebite").words
    reach = Reach(frozenset({"sepsis"}), 18, 90)
    assert reach.left_by(["sepsis"], 17) == "nobody in the bank is that young"
    assert reach.left_by([], 91) == "nobody in the bank is that old"
    assert (
        reach.left_by(["sepsis"], None) == reach.left_by([], 18) == Reach(frozenset(), None, None).left_by([], 5) == ""
    )


def test_a_list_that_is_not_computed_yet_does_not_keep_the_page_waiting(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patients_like_me.serve.pages.worklist_page.LONGEST", -1.0)
    monkeypatch.setattr(served.state, "listing", Listing(served.state))
    monkeypatch.setattr(served.state.listing, "prepare_beside", lambda: None)
    page = shown(served.client.get("/", headers=HTML))
    assert re.search(r"\d+ patients are still being predicted", page.words)
    monkeypatch.setattr("patients_like_me.serve.api.LONGEST", -1.0)
    listed = WorklistOut.model_validate(served.client.get("/api/v1/worklist").json())
    assert (len(listed.patients), listed.waiting) == (0, len(served.state.patients))
    assert "There is no patient yet" not in page.words
    served.state.listing.prepare()
    assert "still being predicted" not in shown(served.client.get("/", headers=HTML)).words


def test_a_what_if_is_answered_in_words_with_the_change(served: Served) -> None:
    answer = served.client.post("/patients/P1/what-if", json={"drop": ["R1"]}, headers=HTML)
    assert answer.status_code == 200
    assert "data-left=" in answer.text
    assert re.search(r"(up|down) by|hardly changed", answer.text)
    refused = served.client.post("/patients/P1/what-if", json={"drop": ["R99"]}, headers={"accept": "application/json"})
    assert refused.status_code == 422
    assert "R99" in refused.json()["detail"]


def test_a_change_is_said_with_its_size_and_direction() -> None:
    def what_if(before: float | None, after: float | None, **sets: tuple[str, ...]) -> dict[str, Any]:
        states = [
            State("yes", value, 0.0, (), sets.get(name, ()))
            for value, name in ((before, "chosen_before"), (after, "chosen_after"))
        ]
        return in_words(WhatIf("without R1", *states, (), (), (), "weakly supported"))

    assert what_if(0.12, 0.2)["detail"] == "up by 8.0 points, from 12.0 % (about 1 in 8)"
    assert what_if(0.2, 0.12)["detail"].startswith("down by 8.0 points")
    assert what_if(0.2, 0.2001)["detail"].startswith("hardly changed")
    drugs = what_if(None, None, chosen_before=("A", "B"), chosen_after=("B", "C"))
    assert (drugs["gone"], drugs["won"]) == (["A"], ["C"])


def test_the_saved_file_is_the_static_page(served: Served) -> None:
    found = served.client.get("/patients/P1/file", headers=HTML)
    assert found.headers["content-disposition"] == 'attachment; filename="patient-P1.html"'
    assert found.text == served.state.static_page("P1")
    assert "A what-if" not in found.text


def test_the_saved_file_is_what_is_shown_also_a_what_if(served: Served, make_reader: Callable[[], Any]) -> None:
    asked = {"change": json.dumps({"drop": ["R1"], "tau": None}), "drug": ""}
    found = served.client.post("/patients/P1/file", data=asked, headers=HTML)
    assert found.headers["content-disposition"] == 'attachment; filename="patient-P1-what-if.html"'
    page = Page(found.text)
    assert "A what-if, not the record as it is: without R1" in page.words
    assert "what-if" in page.ids
    assert served.client.post("/patients/P1/file", headers=HTML).text == served.state.static_page("P1")
    assert served.client.post("/patients/P1/file", data={"change": "{"}, headers=HTML).status_code == 422
    assert make_reader().post("/patients/P1/file", data=asked, headers=HTML).status_code == 403


def test_pasted_rows_become_a_patient_and_wrong_ones_are_named(served: Served) -> None:
    wrong = shown(served.client.post("/new/table", data={"text": f"{ROWS}\nnonsense"}, headers=HTML), 422)
    assert "The patient cannot be predicted yet: row 5 : there is no kind 'nonsense'; write 'kind, code'" in wrong.words
    # What was pasted is still there, to be corrected.
    assert "sepsis" in wrong.words
    added = served.client.post("/new/table", data={"text": ROWS}, headers=HTML, follow_redirects=False)
    assert added.status_code == 303
    page = shown(served.client.get(added.headers["location"], headers=HTML))
    assert "female, 71 years, 1 visit" in page.words
    name = added.headers["location"].rsplit("/", 1)[1]
    assert served.client.post(f"/patients/{name}/forget", follow_redirects=False).status_code == 303
    assert served.client.get(f"/patients/{name}", headers=HTML).status_code == 404


def test_a_bundle_and_tables_are_uploaded_and_wrong_files_are_named(served: Served) -> None:
    def send(path: str, **files: tuple[str, bytes]) -> Any:
        return served.client.post(path, files=files, headers=HTML, follow_redirects=False)

    assert send("/new/bundle", bundle=("bundle.json", json.dumps(BUNDLE).encode())).status_code == 303
    for content, words in ((b"{", "not JSON"), (b'{"resourceType": "Patient"}', "not a FHIR Bundle")):
        assert words in shown(send("/new/bundle", bundle=("bundle.json", content)), 422).words
    visits = ("visits.csv", b"subject_id,visit_id,order\nada,v1,1\n")
    events = ("events.csv", b"visit_id,kind,code\nv1,diagnosis/own,sepsis\n")
    assert send("/new/tables", visits=visits, events=events).status_code == 303
    assert "events : choose a file" in shown(send("/new/tables", visits=visits), 422).words
    assert "must end in" in shown(send("/new/tables", visits=("visits.zip", b"x"), events=events), 422).words


def test_hostile_names_stay_text() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    text = environment().get_template("what_if_answer.html.jinja").render(
        e=SimpleNamespace(support=SimpleNamespace(word="weakly supported"), references=()),
        w=SimpleNamespace(
            left=(hostile,), newcomers=(hostile,), support=hostile, notes=(hostile,),
            before=SimpleNamespace(probability=None, chosen=(hostile,), answer=hostile),
            after=SimpleNamespace(probability=None, chosen=(), answer=hostile),
        ),
        headline=hostile, detail=hostile, gone=[hostile], won=[],
    )  # fmt: skip
    assert "<img" not in text
    assert "<script>" not in error_page(404, "Not Found", "<script>x</script>")
    assert "<b>" not in outcome_chart([True], "<b>")


def framed(template: str, **values: Any) -> Page:
    """Fill in a page of the frame without a server."""
    about = SimpleNamespace(task="readmission", name="run", bank_version="v1")
    text = (
        environment()
        .get_template(template)
        .render(
            **values, about=about, access=SimpleNamespace(name="x"), places=[("/run", "Run")], here="/run", version="1"
        )
    )
    return Page(text)


def test_the_report_is_drawn_in_the_frame() -> None:
    table = Table("Metrics <i>", ("metric", "value"), (("auroc", "0.7"),), numbers=frozenset({"value"}))
    sections = (Section("metrics", "Metrics", (Text("All of them.", "warning"), table)),)
    report = RunReport("A run", "readmission", "run", ("One sentence.",), sections, "1")
    page = framed("served_run.html.jinja", r=report)
    assert {"All of them.", "auroc", "Metrics <i>"} <= {part.strip() for part in page.text}
    assert "#metrics" in page.links
    assert ("link", "/assets/run.css") in [(tag, each.get("href")) for tag, each in page.tags]


def test_what_a_bank_cannot_tell_is_said_in_words() -> None:
    empty = BankView("v1", 0, "fewer than 11", "fewer than 11", "0", None, None, (), (), ())
    words = framed("bank_page.html.jinja", bank=empty).words
    for sentence in (
        "fewer than 11 earlier visits",
        "Their dates are not known",
        "Outcome rates are not available",
        "Not known yet",
    ):
        assert sentence in words
    assert "None" not in words
    shifted = replace(empty, no_calendar="the dates were shifted", hubs_note="there is no test patient")
    words = framed("bank_page.html.jinja", bank=shifted).words
    assert "Their dates cannot be given: the dates were shifted." in words
    assert "Not counted: there is no test patient." in words


def test_what_a_bank_leaves_out_and_what_is_known_of_today_is_said() -> None:
    line = CheckLine("calibration slope", "1.00", "0.90", "below 0.8", False)
    code = CodeLine("diagnosis: sepsis", "1.0 %", "9.0 %", "more frequent now")
    today = CheckView("40 visits", "keep", "keep: fine", (), (line,), (code,), codes_left_out=3)
    bank = BankView("v1", 0, "90", "60", "0", None, None, (("A", "1 %"),), (), (), today=today, outcomes_left_out=12)
    words = framed("bank_page.html.jinja", bank=bank).words
    assert "The 1 most frequent outcomes; 12 more are not listed" in words
    assert "The 1 codes that moved most; 3 more have moved" in words
    assert "On today's patients whose outcome is known already" in words
    assert "Not known yet" not in words
    assert "No outcome has been added to the bank since the training" in words


def test_a_system_without_references_says_so(plain_served: Served) -> None:
    plain = plain_served
    page = shown(plain.client.get("/patients/P1", headers=HTML))
    assert "predicts without similar patients" in page.words
    assert "what-if" not in page.ids
    assert "P1" in shown(plain.client.get("/", headers=HTML)).words
    assert "no bank of references" in shown(plain.client.get("/bank", headers=HTML), 422).words


def test_one_drug_can_be_explained_alone(
    served: Served, make_served: Callable[..., Served], finished_run: Callable[..., Path], today: Path
) -> None:
    drugs = make_served(finished_run("drug_recommendation", references="bank"), today)
    whole = shown(drugs.client.get("/patients/P1", headers=HTML))
    offered = [str(each["value"]) for tag, each in whole.tags if tag == "option" and each.get("value") in DRUGS]
    assert offered
    one = shown(drugs.client.get(f"/patients/P1?drug={offered[0]}", headers=HTML))
    assert f"/patients/P1/what-if?drug={offered[0]}" in [each.get("data-address") for _, each in one.tags]
    words = shown(drugs.client.get("/", headers=HTML)).words
    # What became of similar patients is known, though a set of drugs is not one event.
    assert re.search(r"\d+ of \d+ received at least half of the likely drugs", words)
    assert "outcomes not known" not in words
    # A set has no single probability; it is ordered by what the report orders by.
    assert "highest expected number of drugs first" in words
    assert "highest predicted risk first" in shown(served.client.get("/", headers=HTML)).words
    for name in ("P1", "P2"):
        explained = drugs.state.patient(name).explanation
        row = Listing(drugs.state).row(name)
        assert explained is not None
        assert row.outcome_bits == tuple(each.agrees for each in explained.references)


def test_a_range_says_how_often_such_a_prediction_was_right(
    make_served: Callable[..., Served],
    finished_run: Callable[..., Path],
    today: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The hospital of the tests is small; what is shown for a large one is the same.
    for name, value in {"FEWEST_ALIKE": 2, "SMALLEST_PART": 1, "SMALLEST_SHOWN": 0, "NEAR": 1.0}.items():
        monkeypatch.setattr(f"patients_like_me.serve.worklist.{name}", value)
    for task, words in (("readmission", "were readmitted"), ("length_of_stay", "had the predicted outcome")):
        stay = make_served(finished_run(task, references="bank"), today)
        monkeypatch.setattr(stay.state, "listing", Listing(stay.state))
        assert f"{words}." in shown(stay.client.get("/patients/P1", headers=HTML)).words
        model = stay.state.model.current
        found = read_predictions(model.run, newcomers=True).of_split("validation")
        right = found.labels if task == "readmission" else found.labels == found.probabilities.argmax(axis=1)
        assert model.ranges is not None
        assert sorted(model.ranges.happened) == sorted(right.astype(bool))


def test_stays_are_ordered_by_their_expected_length(
    make_served: Callable[..., Served], finished_run: Callable[..., Path], today: Path
) -> None:
    """The most likely class may be probable because it is the shortest one."""
    stays = make_served(finished_run("length_of_stay", references="bank"), today)
    page = shown(stays.client.get("/", headers=HTML))
    assert "highest expected length of stay first" in page.words
    listed = [str(each["data-name"]) for _, each in page.tags if "data-risk" in each]
    answers = stays.client.get("/api/v1/worklist").json()["patients"]
    assert listed == [each["pseudonym"] for each in answers]
    expected = []
    for name in listed:
        kept = stays.state.patients.get(name)
        probabilities = stays.state.predict(kept.cohort)[0].probabilities
        expected.append(sum(place * each for place, each in enumerate(probabilities.values())))
    assert expected == sorted(expected, reverse=True)
    assert expected == pytest.approx([each["risk"] for each in answers])


def test_the_range_is_that_of_predictions_on_both_sides() -> None:
    rng = np.random.default_rng(3)
    predicted = rng.beta(1, 4, 420)
    ranges = Ranges.of(predicted, rng.random(420) < predicted, "came back")
    risk = float(np.sort(predicted)[-20])
    found = ranges.around(risk)
    assert found is not None
    span = re.search(r"predicted (\d+) % to (\d+) %", found[2])
    assert span, found[2]
    first, last = (int(end) / 100 for end in span.groups())
    inside = (predicted > first - 0.005) & (predicted < last + 0.005)
    below, above = (int((inside & side).sum()) for side in (predicted < risk, predicted > risk))
    assert abs(below - above) <= 3
    assert found[0] <= risk <= found[1]
    # At the ends there is nobody on one side: which end it is, is said.
    assert "the highest predictions" in ranges.around(float(predicted.max()))[2]  # type: ignore[index]
    assert "the lowest predictions" in ranges.around(0.0)[2]  # type: ignore[index]
    assert ranges.around(0.99) is None
    # Of a share that nearly all had, how few had it not stays hidden as well.
    sure = Ranges.of(np.full(300, 0.9), np.arange(300) % 15 > 0, "came back").around(0.9)
    assert sure is not None
    assert sure[2] == "of 100 validation patients predicted about 90 %, more than 71 came back"
    same = Ranges.of(np.full(300, 0.5), np.arange(300) % 2 > 0, "came back").around(0.5)
    assert same is not None
    assert "predicted about 50 %, 38 to 62 came back" in same[2]


def test_an_empty_record_is_refused_and_one_without_codes_is_flagged(served: Served) -> None:
    def sent(**given: Any) -> Any:
        return served.client.post("/api/v1/patients", json=given)

    refused = sent(visits=[{}])
    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["visits"]
    assert "the record is empty" in refused.json()["detail"]
    assert served.client.post("/api/v1/predict", json={"visits": [{"admission": "2024-05-01"}]}).status_code == 422
    # A wrong age is wrong, not missing.
    assert [error["field"] for error in sent(age=500, visits=[{}]).json()["errors"]] == ["age"]
    added = sent(age=71, visits=[{}])
    assert added.json()["notes"] == [WITHOUT_CODES]
    page = shown(served.client.get(f"/patients/{added.json()['pseudonyms'][0]}", headers=HTML))
    assert "No codes: predicted from age, sex and the like alone." in page.words
    # Nobody has assigned codes after the discharge of a patient who is typed in.
    assert "The model learned from codes that are assigned after discharge" in page.words
    assert "The model saw the current visit's codes" not in page.words
    assert WITHOUT_CODES in shown(served.client.get("/", headers=HTML)).words
    both = {"patients": [{"age": 71, "visits": [{}]}, {"visits": [{"diagnoses": ["own:sepsis"]}]}]}
    assert WITHOUT_CODES in served.client.post("/api/v1/predict", json=both).json()["notes"]
    known = sent(visits=[{"diagnoses": ["own:sepsis"]}])
    assert known.json()["notes"] == []
    assert "No codes" not in shown(served.client.get(f"/patients/{known.json()['pseudonyms'][0]}", headers=HTML)).words


def test_what_if_offers_only_kinds_that_can_be_added(
    make_served: Callable[..., Served], finished_run: Callable[..., Path], today: Path
) -> None:
    drugs = make_served(finished_run("drug_recommendation", references="bank"), today)

    def page_of(visits: int) -> tuple[Page, str]:
        given = {"age": 60, "visits": [{"diagnoses": ["own:sepsis"]}] * visits}
        name = drugs.state.add_patients(given)[0]
        return shown(drugs.client.get(f"/patients/{name}", headers=HTML)), name

    # The drugs of the current visit are what is predicted: without an earlier one there is none to add to.
    first, name = page_of(1)
    assert "add-diagnosis" in first.ids
    assert "add-drug" not in first.ids
    assert "No drug can be added" in first.words
    change = {"add_drugs": [next(iter(DRUGS))]}
    refused = drugs.client.post(f"/patients/{name}/what-if", json=change, headers={"accept": "application/json"})
    assert refused.status_code == 422
    second, name = page_of(2)
    assert {"add-diagnosis", "add-drug"} <= set(second.ids)
    assert drugs.client.post(f"/patients/{name}/what-if", json=change, headers=HTML).status_code == 200


def test_small_charts_draw_what_they_are_given() -> None:
    picture = outcome_chart([True, False, None])
    assert [picture.count(f'class="{kind}"') for kind in ("had", "not", "unknown")] == [1, 1, 1]
    assert "1 of 2 had it" in picture
    assert "band" not in range_chart(0.2, None, None)
    assert 'x="10.0"' in range_chart(0.2, 0.1, 0.3)


def test_an_unknown_patient_is_a_page_in_words(served: Served) -> None:
    page = shown(served.client.get("/patients/P999", headers=HTML), 404)
    assert "Back to the worklist" in page.words


def test_looking_is_in_the_access_log_under_the_pseudonym_alone(served: Served) -> None:
    before = len(served.log.read_text().splitlines())
    served.client.get("/", headers=HTML)
    served.client.get("/patients/P2", headers=HTML)
    served.client.post("/patients/P2/what-if", json={"drop": ["R1"]})
    served.client.post("/patients/P2/file")
    served.client.post("/", data={"search": served.state.patients.get("P2").subject_id}, headers=HTML)
    added = served.client.post("/new/table", data={"text": ROWS}, headers=HTML, follow_redirects=False)
    name = added.headers["location"].rsplit("/", 1)[1]
    served.client.post("/new/bundle", files={"bundle": ("b.json", json.dumps(BUNDLE).encode())}, follow_redirects=False)
    served.client.post(f"/patients/{name}/forget", follow_redirects=False)
    lines = [json.loads(line) for line in served.log.read_text().splitlines()[before:]]
    next_name = f"N{int(name[1:]) + 1}"
    assert [(line["who"], line["what"], line["pseudonym"]) for line in lines] == [
        ("owner", "worklist", None),
        ("owner", "page", "P2"),
        ("owner", "what-if", "P2"),
        ("owner", "file", "P2"),
        ("owner", "worklist", None),
        ("owner", "added", name),
        ("owner", "added", next_name),
        ("owner", "forgotten", name),
    ]
    assert not {served.state.patients.get("P2").subject_id, "ada"} & {str(x) for line in lines for x in line.values()}
