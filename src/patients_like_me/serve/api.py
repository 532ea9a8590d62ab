"""The JSON interface under ``/api/v1``; every route is a plain function that runs in a worker thread.

Roles: ``read`` sees the patients of the list, ``upload`` may send records, ``what-if`` may ask what if.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import polars as pl
from fastapi import APIRouter, Body, Depends, Path, Query, Request
from fastapi.responses import Response

from patients_like_me import __version__
from patients_like_me.codes.registry import Kind
from patients_like_me.errors import PlmError
from patients_like_me.explanation.explanation import Explanation
from patients_like_me.explanation.what_if import Change
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.newcomers import names_in_order
from patients_like_me.serve import answers
from patients_like_me.serve.access import Access, needs
from patients_like_me.serve.problems import FieldProblem, FieldProblems, HttpProblem
from patients_like_me.serve.reading import Notes, all_notes
from patients_like_me.serve.responses import JsonResponse
from patients_like_me.serve.shapes import (
    ADA,
    BUNDLE,
    Asked,
    BundleIn,
    ExplainIn,
    PatientIn,
    PatientsIn,
    Pseudonym,
    ReferencesIn,
    SomePatients,
    WhatIfIn,
)
from patients_like_me.serve.views import WITHOUT_CODES

if TYPE_CHECKING:
    from patients_like_me.serve.state import ServeState

#: Seconds that a request for the list takes for lines that are not computed yet.
LONGEST: Final = 20.0
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": answers.ProblemOut, "description": words, "content": {"application/problem+json": {}}}
    for status, words in {
        400: "the body is not JSON",
        401: "no token, or an unknown one",
        403: "the token's roles do not allow this, or the request comes from another site",
        408: "the body took too long",
        413: "the body is too large",
        421: "another host was asked for",
        422: "a field is wrong; it is named",
        503: "too many requests at once",
    }.items()
}
_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": answers.ProblemOut, "description": "no such patient", "content": {"application/problem+json": {}}}
}
_PATIENTS_BODY: Final = {
    "one patient": {"value": ADA},
    "several patients": {"value": {"patients": [ADA, {"age": 50, "visits": [{"diagnoses": ["J18.9"]}]}]}},
    "FHIR Bundle": {"value": BUNDLE},
}


def api_routes(state: ServeState) -> APIRouter:
    """Return the routes of the API."""
    routes = APIRouter(prefix="/api/v1", responses=_REFUSALS, default_response_class=JsonResponse)

    @routes.get("/health", response_model=answers.HealthOut, tags=["server"])
    def health(request: Request) -> Response:
        """Tell whether the server lives, and to who has a token also which run it serves."""
        found: dict[str, Any] = {"status": "ok", "version": __version__}
        if getattr(request.state, "access", None) is not None:
            about = state.about
            found |= {
                "run": about.name,
                "task": about.task,
                "system": about.system,
                "references": about.has_references,
                "bank_version": about.bank_version,
            }
        return JsonResponse(found)

    @routes.post(
        "/predict", response_model=answers.PredictOut, tags=["patients"], dependencies=[Depends(needs("upload"))]
    )
    def predict(request: Request, body: Annotated[SomePatients, Body(openapi_examples=_PATIENTS_BODY)]) -> Response:
        """Predict the last visit of each patient."""
        cohort, order, own_notes = read_body(state, body)
        notes = notes_of(cohort, own_notes)
        model = state.model.current
        found = state.predict(cohort, model)
        predictions = []
        for number, (place, name) in enumerate(order, start=1):
            plain = found[place]
            predictions.append(
                {
                    "patient": number,
                    "id": name,
                    "answer": plain.answer,
                    "probability": plain.probability,
                    "probabilities": plain.probabilities,
                    "references": plain.references,
                }
            )
        state.looked_at(request, None, "predict")
        about = state.about_of(model)
        return JsonResponse(
            {
                "task": about.task,
                "labels": list(about.labels),
                "bank_version": about.bank_version,
                "predictions": predictions,
                "notes": list(notes),
            }
        )

    @routes.post("/explain", response_model=answers.ExplainOut, tags=["patients"], responses=_NOT_FOUND)
    def explain(request: Request, body: ExplainIn) -> Response:
        """Explain the prediction of one patient: references, what they do to it, what speaks against it."""
        cohort, notes = patient_of(state, request, body)
        found = state.explain_cohort(cohort, None, body.drug, body.threshold)
        state.looked_at(request, body.pseudonym, "explain")
        return JsonResponse({"pseudonym": body.pseudonym, "explanation": found.as_json(), "notes": list(notes)})

    @routes.post(
        "/what-if",
        response_model=answers.WhatIfOut,
        tags=["patients"],
        responses=_NOT_FOUND,
        dependencies=[Depends(needs("what-if"))],
    )
    def what_if(request: Request, body: WhatIfIn) -> Response:
        """Predict again after a change, and tell which references left and joined."""
        change = change_of(body)
        cohort, notes = patient_of(state, request, body)
        found = state.explain_cohort(cohort, change, body.drug, body.threshold).what_if
        assert found is not None
        state.looked_at(request, body.pseudonym, "what-if")
        before, after = found.before.probability, found.after.probability
        return JsonResponse(
            {
                "pseudonym": body.pseudonym,
                "what_if": asdict(found),
                "difference": None if before is None or after is None else after - before,
                "notes": list(notes),
            }
        )

    @routes.post("/references", response_model=answers.ReferencesOut, tags=["patients"], responses=_NOT_FOUND)
    def references(request: Request, body: ReferencesIn) -> Response:
        """List the references of one prediction under pseudonyms, with what became of them."""
        cohort, notes = patient_of(state, request, body)
        found = state.explain_cohort(cohort, None, body.drug, body.threshold)
        state.looked_at(request, body.pseudonym, "references")
        return JsonResponse(
            {
                "pseudonym": body.pseudonym,
                "references": references_json(found)[: body.most],
                "support": asdict(found.support),
                "notes": list(notes),
            }
        )

    @routes.get("/bank", response_model=answers.BankOut, tags=["server"])
    def bank() -> Response:
        """Describe the bank: how many references, from when to when, what became of them, what drifted."""
        return JsonResponse({"bank": state.bank().as_json()})

    @routes.get("/codes", response_model=answers.CodesOut, tags=["server"])
    def codes(
        q: Annotated[str, Query(max_length=100, description="a name, a synonym, an ICD code, a drug")],
        kind: Annotated[Kind, Query()] = "diagnosis",
        limit: Annotated[int, Query(ge=1, le=50)] = 20,
    ) -> Response:
        """Find codes by what a person types."""
        return JsonResponse({"codes": [asdict(found) for found in state.search_codes(q, kind, limit)]})

    @routes.get("/worklist", response_model=answers.WorklistOut, tags=["patients"])
    def worklist(request: Request) -> Response:
        """List today's patients and the new ones, the highest risk first."""
        rows = state.worklist(within=LONGEST)
        state.looked_at(request, None, "worklist")
        return JsonResponse(
            {
                "patients": [asdict(row) for row in rows],
                "waiting": state.listing.waiting(rows),
                "not_listed": state.listing.not_listed,
            }
        )

    @routes.post(
        "/patients",
        status_code=201,
        response_model=answers.AddedOut,
        tags=["patients"],
        dependencies=[Depends(needs("upload"))],
    )
    def add(request: Request, body: Annotated[SomePatients, Body(openapi_examples=_PATIENTS_BODY)]) -> Response:
        """Keep new patients in memory, to look at them on a page."""
        cohort, order, own_notes = read_body(state, body)
        names = state.patients.add(cohort, own_notes)
        state.looked_at(request, ",".join(names), "added", 201)
        notes = list(notes_of(cohort, own_notes))
        return JsonResponse({"pseudonyms": [names[place] for place, _ in order], "notes": notes}, 201)

    @routes.delete(
        "/patients/{pseudonym}",
        status_code=204,
        tags=["patients"],
        responses=_NOT_FOUND,
        dependencies=[Depends(needs("upload"))],
    )
    def forget(request: Request, pseudonym: Annotated[Pseudonym, Path()]) -> Response:
        """Remove a new patient from memory."""
        state.forget(pseudonym)
        state.looked_at(request, pseudonym, "forgotten", 204)
        return Response(status_code=204)

    return routes


def plain_of(body: PatientIn | BundleIn | PatientsIn) -> Any:
    """Return a body as newcomers: dicts, or a Bundle."""
    if isinstance(body, BundleIn):
        return body.model_dump(mode="json")
    people = body.patients if isinstance(body, PatientsIn) else (body,)
    return [person.model_dump(exclude_none=True, exclude_defaults=True) for person in people]


def read_body(
    state: ServeState, body: PatientIn | BundleIn | PatientsIn
) -> tuple[Cohort, list[tuple[int, str | None]], Notes]:
    """Return the patients of a body as a cohort, each one's place in it and id in the order given, and their notes."""
    try:
        given = plain_of(body)
        cohort, notes = state.read_patients(given)
    except PlmError as error:
        raise problem_in(body, error) from None
    except ValueError:
        # A text that is no text (half of a surrogate pair) cannot be written as JSON.
        raise problem_in(body, PlmError("the Bundle is not JSON", remedy="send it as it was exported")) from None
    ids = cohort.patients["subject_id"].to_list()
    if isinstance(body, BundleIn):
        return cohort, list(enumerate(ids)), notes
    people = body.patients if isinstance(body, PatientsIn) else (body,)
    if len(people) == 1:
        return cohort, [(0, people[0].id)], notes
    place = {name: number for number, name in enumerate(ids)}
    names = names_in_order(given) or ids
    return cohort, [(place[name], person.id) for name, person in zip(names, people, strict=True)], notes


def problem_in(body: Any, error: PlmError) -> HttpProblem:
    """Return what is wrong with a record, which names the field where the sentence tells it."""
    from patients_like_me.plain_text import printable

    path = "entry" if isinstance(body, BundleIn) else "patients" if isinstance(body, PatientsIn) else "visits"
    return FieldProblems([FieldProblem(path, printable(error))])


def patient_of(state: ServeState, request: Request, body: Asked) -> tuple[Cohort, tuple[str, ...]]:
    """Return the one patient that is asked about."""
    if body.pseudonym is not None:
        kept = state.patients.get(body.pseudonym)
        return kept.cohort, notes_of(kept.cohort, (kept.notes,))
    access: Access | None = getattr(request.state, "access", None)
    if access is None or not access.may("upload"):
        raise HttpProblem(403, "sending a record needs the role 'upload', which your token does not have")
    assert body.patient is not None
    cohort, order, notes = read_body(state, body.patient)
    if len(order) != 1:
        field = FieldProblem("patient", f"one patient can be explained at a time; this Bundle has {len(order)}")
        raise FieldProblems([field])
    return cohort, notes_of(cohort, notes)


def notes_of(cohort: Cohort, own: Notes) -> tuple[str, ...]:
    """Return what must be known of the records that were sent: what was left out, and that one holds no code."""
    if cohort.patients.height == 1:
        lacking = not any(table.height for table in cohort.codes.values())
        return (*all_notes(own), *((WITHOUT_CODES,) if lacking else ()))
    visits = pl.concat([table["visit"] for table in cohort.codes.values()]).unique()
    subjects = cohort.visits["subject"].gather(visits).n_unique()
    return (*all_notes(own), *((WITHOUT_CODES,) if subjects < cohort.patients.height else ()))


def change_of(body: WhatIfIn) -> Change:
    """Return the change of a what-if; none is a problem."""
    given = body.change
    change = Change(
        drop=tuple(name.upper() for name in given.drop),
        tau=given.tau,
        add=given.add,
        remove=given.remove,
        add_drugs=given.add_drugs,
        remove_drugs=given.remove_drugs,
    )
    if not change:
        raise FieldProblems([FieldProblem("change", "nothing is changed")])
    return change


def references_json(explanation: Explanation) -> list[dict[str, Any]]:
    """Return the references of an explanation as plain data, without ids."""
    return [
        {
            "reference": item.name,
            "about": item.person.about,
            "shared_diagnoses": item.weight,
            "cosine": item.cosine,
            "outcome": item.outcome,
            "had": item.had,
            "influence": item.influence,
            "shared": [code.name for code in item.evidence],
        }
        for item in explanation.references
    ]
