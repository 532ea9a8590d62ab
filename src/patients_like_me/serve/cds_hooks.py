"""CDS Hooks 2.0: an electronic record calls when a chart is opened or drugs are chosen, and gets a card.

The service reads the FHIR resources that the caller prefetched and asks nobody for more: a request without them is
answered with 412, as the specification has it. A prefetch that is ``null`` was asked for and has no data, which is an
answer; a patient without a visit to predict gets no card. The card says the prediction in one line, how well it is
supported, and links to the patient's page.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Annotated, Any, Final

import polars as pl
from fastapi import APIRouter, Body, Depends, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from patients_like_me.codes.coverage import UNMAPPED
from patients_like_me.codes.registry import find_code_system
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import NoVisitsError
from patients_like_me.plain_text import percent_of, printable
from patients_like_me.serve.access import needs
from patients_like_me.serve.guard import GuardSettings
from patients_like_me.serve.problems import FieldProblem, FieldProblems, HttpProblem
from patients_like_me.serve.responses import JsonResponse
from patients_like_me.serve.shapes import MOST_RESOURCES

if TYPE_CHECKING:
    from patients_like_me.explanation.explanation import Explanation
    from patients_like_me.serve.state import ServeState
    from patients_like_me.serve.views import PlainPrediction

#: Where the page of a patient is.
PATIENT_PATH: Final = "/patients/"
#: What a caller sends along, by the name of the prefetch.
PREFETCH: Final = {
    "patient": "Patient/{{context.patientId}}",
    "encounters": "Encounter?patient={{context.patientId}}",
    "conditions": "Condition?patient={{context.patientId}}",
    "procedures": "Procedure?patient={{context.patientId}}",
    "medications": "MedicationRequest?patient={{context.patientId}}&_include=MedicationRequest:medication",
}
_NEEDED: Final = ("patient", "encounters", "conditions")
_ATC: Final = "http://www.whocc.no/atc"
_LONGEST_SUMMARY: Final = 139
_DRUG_SYSTEMS: Final = {
    _ATC: "atc",
    "http://www.nlm.nih.gov/research/umls/rxnorm": "rxnorm",
    "http://hl7.org/fhir/sid/ndc": "ndc",
}


class HookContext(BaseModel):
    """Where the caller is: the user, the patient, and for ``order-select`` the drafts and which were chosen."""

    model_config = ConfigDict(extra="allow", frozen=True)

    userId: str = Field(min_length=1, max_length=200)  # noqa: N815 - the specification's own names
    patientId: str = Field(min_length=1, max_length=200)  # noqa: N815
    encounterId: str | None = Field(None, max_length=200)  # noqa: N815
    selections: tuple[str, ...] = Field((), max_length=200)
    draftOrders: dict[str, Any] | None = None  # noqa: N815


class HookRequest(BaseModel):
    """The call of a service."""

    model_config = ConfigDict(extra="allow", frozen=True)

    hook: str = Field(max_length=100)
    hookInstance: uuid.UUID  # noqa: N815
    context: HookContext
    prefetch: dict[str, dict[str, Any] | None] | None = None


def service_id(name: str, hook: str) -> str:
    """Return the id of a service: letters, digits and hyphens.

    >>> service_id("VEM run_3", "patient-view")
    'vem-run-3-patient-view'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    return f"{slug}-{hook}"


def services_of(state: ServeState) -> list[dict[str, Any]]:
    """Return the services of a run, as the discovery endpoint lists them."""
    about = state.about
    hooks = ["patient-view", *(["order-select"] if state.model.current.run.task.label_codes == "medication" else [])]
    leaning = ", with the earlier patients it leans on" if about.has_references else ""
    return [
        {
            "hook": hook,
            "id": service_id(about.name, hook),
            "title": f"Patients-like-me: {about.title}",
            "description": f"{about.question}: a prediction from the patient's record{leaning}.",
            "prefetch": dict(PREFETCH),
            "usageRequirements": "Send the prefetched FHIR R4 resources; the service does not call a FHIR server.",
        }
        for hook in hooks
    ]


def cds_routes(state: ServeState, settings: GuardSettings) -> APIRouter:
    """Return the routes of CDS Hooks."""
    routes = APIRouter(tags=["CDS Hooks"], default_response_class=JsonResponse)

    @routes.get("/cds-services")
    def discover() -> Response:
        """List the services of this server."""
        return JsonResponse({"services": services_of(state)})

    @routes.post("/cds-services/{service}", dependencies=[Depends(needs("upload"))])
    def call(
        request: Request,
        service: Annotated[str, Path(max_length=200)],
        body: Annotated[HookRequest, Body()],
    ) -> Response:
        """Predict the patient of a hook and answer with a card."""
        known = {each["id"]: each["hook"] for each in services_of(state)}
        if service not in known:
            raise HttpProblem(404, "there is no such service; GET /cds-services lists them")
        if body.hook != known[service]:
            raise FieldProblems([FieldProblem("hook", f"this service answers the hook '{known[service]}'")])
        if known[service] == "order-select" and (body.context.draftOrders is None or not body.context.selections):
            raise FieldProblems([FieldProblem("context", "order-select needs 'selections' and 'draftOrders'")])
        bundle, cut = bundle_of(body)
        try:
            cohort, own_notes = state.read_patients(_with_visits(bundle))
        except NoVisitsError:
            # Many charts have no hospital stay; that is nothing to disturb anybody with.
            return JsonResponse({"cards": []})
        if cohort.patients.height != 1:
            raise FieldProblems([FieldProblem("prefetch", "the resources belong to several patients")])
        notes = (*own_notes[0], *cut)
        model = state.model.current
        plain = state.predict(cohort, model)[0]
        explanation = state.explain_cohort(cohort, model=model) if model.has_references else None
        name = state.patients.add(cohort, [notes])[0]
        state.looked_at(request, name, f"cds-hooks {known[service]}")
        card = card_of(state, plain, explanation, notes)
        host = request.headers["host"]
        scheme = "https" if settings.secure else "http"
        card["links"] = [
            {"label": "Open the patient's page", "url": f"{scheme}://{host}{PATIENT_PATH}{name}", "type": "absolute"}
        ]
        cards = [card]
        if known[service] == "order-select":
            cards += order_cards(state, body.context, plain, explanation)
        return JsonResponse({"cards": cards})

    return routes


def bundle_of(request: HookRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the prefetched resources as one Bundle, and what was cut off; what a service needs is a precondition."""
    given = request.prefetch or {}
    # Null says that there is no data; a key that is not there, or an error, says that nobody looked.
    missing = [name for name in _NEEDED if name not in given or _failed(given[name])]
    missing += [name for name in _NEEDED if name not in missing and _goes_on(given[name])]
    if given.get("patient", {}) is None:
        missing.append("patient")
    if missing:
        raise HttpProblem(
            412,
            f"the prefetch '{missing[0]}' is missing or not whole; this service does not call a FHIR server",
            fields=[FieldProblem(f"prefetch.{name}", "needed") for name in missing],
        )
    _check_patient(given["patient"], request.context.patientId)
    entries: list[dict[str, Any]] = []
    for value in given.values():
        if value is None or _failed(value):
            continue
        if value.get("resourceType") == "Bundle":
            found = value.get("entry") or []
            if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
                raise FieldProblems([FieldProblem("prefetch", "the entries of a Bundle are objects")])
            entries += [{"resource": each["resource"]} for each in found if isinstance(each.get("resource"), dict)]
        else:
            entries.append({"resource": value})
    if len(entries) > MOST_RESOURCES:
        raise FieldProblems([FieldProblem("prefetch", f"more than {MOST_RESOURCES:,} resources")])
    cut = tuple(
        f"only the first page of the {name} was sent" if _goes_on(given.get(name)) else f"the {name} were not sent"
        for name in PREFETCH
        if name not in given or _failed(given[name]) or _goes_on(given[name])
    )
    return {"resourceType": "Bundle", "type": "collection", "entry": entries}, cut


def _with_visits(bundle: dict[str, Any]) -> dict[str, Any]:
    if not any(each["resource"].get("resourceType") == "Encounter" for each in bundle["entry"]):
        raise NoVisitsError("the patient has no Encounter")
    return bundle


def _failed(value: dict[str, Any] | None) -> bool:
    """Tell whether a caller says that it could not fetch something."""
    return value is not None and value.get("resourceType") == "OperationOutcome"


def _goes_on(value: dict[str, Any] | None) -> bool:
    """Tell whether a Bundle is the first of several pages."""
    return any(link.get("relation") == "next" for link in _objects((value or {}).get("link")))


def _check_patient(given: dict[str, Any] | None, expected: str) -> None:
    """Refuse the record of another patient than the one whose chart is open: the card would be about that one."""
    if given is None or given.get("resourceType") != "Patient":
        raise FieldProblems([FieldProblem("prefetch.patient", "a Patient is needed")])
    if given.get("id") != expected.removeprefix("Patient/"):
        raise FieldProblems([FieldProblem("prefetch.patient", "this is not the patient of 'context.patientId'")])


def card_of(
    state: ServeState, plain: PlainPrediction, explanation: Explanation | None, notes: tuple[str, ...]
) -> dict[str, Any]:
    """Return the card of a prediction; its summary is under 140 characters."""
    about = state.about
    if plain.probability is not None:
        summary = f"{about.question}: {percent_of(plain.probability)} ({plain.words})"
    else:
        summary = f"{about.question}: {plain.answer}"
    lines = [f"**{printable(plain.answer)}**"]
    warning = False
    if explanation is not None:
        support = explanation.support
        if support.outcomes:
            lines.append(f"Of the {explanation.compared_with}, {support.outcomes}.")
        lines.append(f"Support: {support.word} ({'; '.join(support.reasons)}).")
        warning = support.word != "well supported"
        summary += f"; {support.word}"
    else:
        lines.append("This system predicts without references.")
    lines += [f"{note[:1].upper()}{note[1:]}." for note in notes]
    lines.append("A prediction from earlier patients' records; it does not replace a clinician's judgement.")
    return {
        "uuid": str(uuid.uuid4()),
        "summary": summary if len(summary) <= _LONGEST_SUMMARY else summary[: _LONGEST_SUMMARY - 1] + "…",
        "detail": "\n\n".join(lines),
        "indicator": "warning" if warning else "info",
        "source": {"label": "Patients-like-me", "topic": {"code": about.task, "display": about.title}},
    }


def order_cards(
    state: ServeState, context: HookContext, plain: PlainPrediction, explanation: Explanation | None
) -> list[dict[str, Any]]:
    """Return a card per chosen drug that the run knows: how probable it is, and which references received it."""
    found = []
    rows = {row.label: row for row in explanation.drugs.rows} if explanation is not None and explanation.drugs else {}
    names = state.model.current.label_names
    for code in selected_drugs(context):
        if code not in plain.probabilities:
            continue
        name = printable(names.get(code, code))
        words = f"{name}: {percent_of(plain.probabilities[code])} of such patients receive it"
        received = [bool(each) for each in rows[code].received if each is not None] if code in rows else []
        detail = f"{sum(received)} of {len(received)} similar patients received it." if received else ""
        found.append(
            {
                "uuid": str(uuid.uuid4()),
                "summary": words[:_LONGEST_SUMMARY],
                "detail": detail or "It is not among the drugs that the run would expect.",
                "indicator": "info",
                "source": {"label": "Patients-like-me", "topic": {"system": _ATC, "code": code, "display": name}},
            }
        )
    return found


def selected_drugs(context: HookContext) -> list[str]:
    """Return the ATC-3 codes of the drafts that were chosen."""
    entries = _objects((context.draftOrders or {}).get("entry"))
    orders = _objects([entry.get("resource") for entry in entries])
    chosen = set(context.selections)
    store, found = CodeStore.default(), []
    for order in orders:
        if f"{order.get('resourceType')}/{order.get('id')}" not in chosen:
            continue
        concept = _concept_of(order, orders)
        codings = _objects(concept.get("coding"))
        given = [
            (_DRUG_SYSTEMS[each["system"]], str(each["code"]))
            for each in codings
            if isinstance(each.get("system"), str) and each["system"] in _DRUG_SYSTEMS and each.get("code")
        ]
        texts = [concept.get("text"), *(each.get("display") for each in codings)]
        given += [("name", text) for text in texts if isinstance(text, str) and text]
        for system, code in given:
            mapped = find_code_system("medication", system).mapper("medication", pl.Series("code", [code]), store)
            if mapped["way"][0] != UNMAPPED and mapped["codes"][0] is not None and len(mapped["codes"][0]):
                found += mapped["codes"][0].to_list()
                break
    return list(dict.fromkeys(found))


def _concept_of(order: dict[str, Any], orders: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what names the drug of an order: in place, or in a Medication that is contained or among the drafts."""
    concept = order.get("medicationCodeableConcept")
    if isinstance(concept, dict):
        return concept
    reference = order.get("medicationReference")
    wanted = str(reference.get("reference")) if isinstance(reference, dict) else ""
    named = [(f"#{each.get('id')}", each) for each in _objects(order.get("contained"))]
    named += [(f"Medication/{each.get('id')}", each) for each in orders if each.get("resourceType") == "Medication"]
    code = next((each.get("code") for name, each in named if name == wanted), None)
    return code if isinstance(code, dict) else {}


def _objects(given: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; what else a caller may have sent is passed over."""
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
