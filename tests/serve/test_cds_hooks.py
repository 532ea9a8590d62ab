"""CDS Hooks 2.0: discovery, cards, and requests that lack what the service needs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from tiny_runs import DRUGS

from patients_like_me.serve.cds_hooks import HookContext, selected_drugs

ICD = "http://hl7.org/fhir/sid/icd-10-cm"
#: A page of a search that has further ones.
NEXT = {"link": [{"relation": "self", "url": "x"}, {"relation": "next", "url": "y"}]}


def prefetch(patient: str = "ada") -> dict[str, Any]:
    """Return what an electronic record sends along, in the forms that the specification allows."""
    me = {"reference": f"Patient/{patient}"}
    return {
        "patient": {"resourceType": "Patient", "id": patient, "gender": "female", "birthDate": "1953-02-01"},
        "encounters": {
            "resourceType": "Bundle",
            "type": "searchset",
            "entry": [
                {
                    "resource": {
                        "resourceType": "Encounter",
                        "id": "v1",
                        "status": "finished",
                        "class": {"code": "IMP"},
                        "subject": me,
                        "period": {"start": "2024-06-01T08:00:00", "end": "2024-06-05T11:00:00"},
                    }
                }
            ],
        },
        "conditions": {
            "resourceType": "Bundle",
            "type": "searchset",
            "entry": [
                {
                    "resource": {
                        "resourceType": "Condition",
                        "id": "c1",
                        "subject": me,
                        "encounter": {"reference": "Encounter/v1"},
                        "code": {"coding": [{"system": ICD, "code": "I50.9"}]},
                    }
                }
            ],
        },
        "procedures": None,
    }


def call(hook: str = "patient-view", **changes: Any) -> dict[str, Any]:
    """Return a request as an electronic record sends it."""
    return {
        "hookInstance": str(uuid.uuid4()),
        "fhirServer": "http://hooks.smarthealthit.org:9080",
        "hook": hook,
        "fhirAuthorization": {
            "access_token": "x",
            "token_type": "Bearer",
            "expires_in": 300,
            "scope": "s",
            "subject": "c",
        },
        "context": {"userId": "Practitioner/example", "patientId": "ada", "encounterId": "89284"},
        "prefetch": prefetch(),
        **changes,
    }


def check_card(card: dict[str, Any]) -> None:
    """Hold a card against the specification: required fields, lengths and words."""
    assert set(card) <= {
        "uuid", "summary", "detail", "indicator", "source", "suggestions", "selectionBehavior", "overrideReasons", "links"
    }  # fmt: skip
    assert 0 < len(card["summary"]) < 140
    assert card["indicator"] in ("info", "warning", "critical")
    assert card["source"]["label"]
    assert set(card["source"]) <= {"label", "url", "icon", "topic"}
    assert card["source"]["topic"]["code"]
    assert ("suggestions" in card) <= ("selectionBehavior" in card)
    uuid.UUID(card["uuid"])
    for link in card.get("links", []):
        assert {"label", "url", "type"} <= set(link)
        assert link["type"] in ("absolute", "smart")


def test_discovery_lists_one_service_with_its_prefetch(served: Any) -> None:
    services = served.client.get("/cds-services").json()["services"]

    assert [service["hook"] for service in services] == ["patient-view"]
    for service in services:
        assert {"hook", "description", "id"} <= set(service)
        assert set(service) <= {"hook", "title", "description", "id", "prefetch", "usageRequirements"}
        assert all("{{context.patientId}}" in query for query in service["prefetch"].values())


def test_a_call_is_answered_with_a_card_that_links_to_the_page(served: Any) -> None:
    service = served.client.get("/cds-services").json()["services"][0]["id"]
    answer = served.client.post(f"/cds-services/{service}", json=call())

    assert answer.status_code == 200, answer.text
    (card,) = answer.json()["cards"]
    check_card(card)
    assert "%" in card["summary"]
    name = card["links"][0]["url"].rsplit("/", 1)[-1]
    assert card["links"][0]["url"].startswith("http://127.0.0.1:8765/patients/N")
    view = served.state.patient(name)
    assert view.explanation is not None
    assert view.explanation.support.word in card["summary"]


def test_no_data_is_an_answer_and_no_visit_needs_no_card(served: Any) -> None:
    service = served.client.get("/cds-services").json()["services"][0]["id"]

    def cards(**changes: Any) -> list[dict[str, Any]]:
        answer = served.client.post(f"/cds-services/{service}", json=call(prefetch={**prefetch(), **changes}))
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["cards"]
        return found

    # The specification: null where there is no data, and then not a missing prefetch.
    assert len(cards(conditions=None, medications=None)) == 1
    outpatient = {"resourceType": "Encounter", "id": "v1", "status": "finished", "class": {"code": "AMB"}}
    outpatient |= {"subject": {"reference": "Patient/ada"}, "period": {"start": "2024-06-01", "end": "2024-06-01"}}
    assert cards(encounters=None, conditions=None) == []
    assert cards(encounters={"resourceType": "Bundle", "entry": [{"resource": outpatient}]}, conditions=None) == []
    # What was not sent, or in part, is said on the card.
    (card,) = cards(procedures={"resourceType": "Bundle", "entry": [], **NEXT})
    assert "Only the first page of the procedures was sent." in card["detail"]
    assert "The medications were not sent." in card["detail"]


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"prefetch": None}, 412, "prefetch.patient"),
        ({"prefetch": {"patient": prefetch()["patient"]}}, 412, "prefetch.conditions"),
        ({"prefetch": {**prefetch(), "conditions": {"resourceType": "OperationOutcome"}}}, 412, "prefetch.conditions"),
        ({"prefetch": {**prefetch(), "encounters": {**prefetch()["encounters"], **NEXT}}}, 412, "prefetch.encounters"),
        ({"prefetch": {**prefetch(), "patient": None}}, 412, "prefetch.patient"),
        # The chart of one patient, the record of another: a card about the wrong person.
        ({"prefetch": prefetch("bob")}, 422, "prefetch.patient"),
        ({"hook": "order-sign"}, 422, "hook"),
        ({"hookInstance": "x"}, 422, "hookInstance"),
        ({"context": {"userId": "u"}}, 422, "context.patientId"),
        ({"prefetch": {**prefetch(), "conditions": {"resourceType": "Bundle", "entry": [1]}}}, 422, "prefetch"),
        ({"prefetch": []}, 422, "prefetch"),
    ],
)
def test_a_call_that_lacks_something_is_refused(served: Any, changes: dict[str, Any], status: int, field: str) -> None:
    service = served.client.get("/cds-services").json()["services"][0]["id"]
    answer = served.client.post(f"/cds-services/{service}", json=call(**changes))

    assert answer.status_code == status, answer.text
    assert field in [error["field"] for error in answer.json()["errors"]]
    assert served.client.post("/cds-services/other", json=call()).status_code == 404


def test_order_select_speaks_of_the_chosen_drugs(
    make_served: Callable[..., Any], finished_run: Callable[..., Path], today: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drugs = make_served(finished_run("drug_recommendation", references="bank"), today)
    services = {each["hook"]: each["id"] for each in drugs.client.get("/cds-services").json()["services"]}
    assert set(services) == {"patient-view", "order-select"}
    monkeypatch.setattr("patients_like_me.serve.cds_hooks.selected_drugs", lambda _: [DRUGS[0], "unheard of"])
    request = {"resourceType": "MedicationRequest", "id": "m1", "medicationCodeableConcept": {"text": "insulin"}}
    context = {
        "userId": "Practitioner/example",
        "patientId": "ada",
        "selections": ["MedicationRequest/m1"],
        "draftOrders": {"resourceType": "Bundle", "entry": [{"resource": request}]},
    }
    answer = drugs.client.post(f"/cds-services/{services['order-select']}", json=call("order-select", context=context))
    assert answer.status_code == 200, answer.text
    about_all, about_one = answer.json()["cards"]
    check_card(about_all)
    check_card(about_one)
    assert about_one["source"]["topic"]["code"] == DRUGS[0]
    assert about_one["source"]["topic"]["display"] == about_one["summary"].split(":")[0]
    refused = drugs.client.post(f"/cds-services/{services['order-select']}", json=call("order-select"))
    assert refused.status_code == 422


def test_drafts_are_read_by_their_codes() -> None:
    rows = [
        ("m1", {"coding": [{"system": "http://www.whocc.no/atc", "code": "C03CA01"}]}),
        ("m2", {"text": "furosemide 40 mg"}),
        ("m3", {"text": "metformin"}),
        ("m4", {"coding": "broken"}),
    ]
    entries = [
        {"resource": {"resourceType": "MedicationRequest", "id": name, "medicationCodeableConcept": concept}}
        for name, concept in rows
    ]
    context = HookContext(
        userId="u",
        patientId="p",
        selections=tuple(f"MedicationRequest/{name}" for name in ("m1", "m2", "m4")),
        draftOrders={"entry": [*entries, 5]},
    )

    assert selected_drugs(context) == ["C03C"]


def test_the_order_of_the_specification_is_read_by_its_name_and_by_reference() -> None:
    # The example of order-select: a diet, and a drug coded in RxNorm, which needs a table that is not packaged.
    name = "Amoxicillin 120 MG/ML / clavulanate potassium 8.58 MG/ML Oral Suspension"
    coding = {"system": "http://www.nlm.nih.gov/research/umls/rxnorm", "code": "617993", "display": name}
    concept = {"coding": [coding], "text": name}
    drug = {"resourceType": "MedicationRequest", "id": "smart-MedicationRequest-103", "status": "draft"}
    diet = {"resourceType": "NutritionOrder", "id": "pureeddiet-simple", "status": "draft"}
    medication = {"resourceType": "Medication", "id": "m", "code": concept}
    forms: list[list[dict[str, Any]]] = [
        [{**drug, "medicationCodeableConcept": concept}],
        [{**drug, "medicationReference": {"reference": "#m"}, "contained": [medication]}],
        [{**drug, "medicationReference": {"reference": "Medication/m"}}, medication],
    ]
    for orders in forms:
        context = HookContext(
            userId="PractitionerRole/123",
            patientId="1288992",
            encounterId="89284",
            selections=("NutritionOrder/pureeddiet-simple", "MedicationRequest/smart-MedicationRequest-103"),
            draftOrders={"resourceType": "Bundle", "entry": [{"resource": each} for each in (diet, *orders)]},
        )
        assert selected_drugs(context) == ["J01C"]
