"""What goes wrong in a request, as problem+json (RFC 9457): a title, a sentence, and the fields that are meant."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True)
class FieldProblem:
    """What is wrong with one field of a request; ``path`` is written with dots, from the body's root."""

    path: str
    message: str


class HttpProblem(Exception):  # noqa: N818 - RFC 9457 calls it so
    """A request that is refused, in words.

    >>> HttpProblem(404, "there is no patient 'P9'").body()["title"]
    'Not Found'
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        fields: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.detail = detail
        self.fields = tuple(fields)
        self.headers = dict(headers or {})
        super().__init__(detail)

    @property
    def title(self) -> str:
        """The name of the status."""
        return HTTPStatus(self.status).phrase

    def body(self) -> dict[str, Any]:
        """Return the problem as plain data."""
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "errors": [{"field": field.path, "message": field.message} for field in self.fields],
        }


class FieldProblems(HttpProblem):
    """A body whose fields are not what they should be, field by field."""

    def __init__(self, fields: Sequence[FieldProblem]) -> None:
        number = len(fields)
        named = f"the field '{fields[0].path}' is wrong" if fields[0].path else "the request is wrong"
        what = named if number == 1 else f"{number} fields are wrong"
        super().__init__(422, f"{what}: {fields[0].message}", fields=fields)


def is_end_of_work(error: BaseException) -> bool:
    """Tell whether somebody ends the work, which nothing may hold up.

    Everything else is a fault, also what is no ``Exception``: a reader written in Rust reports its own so.
    """
    return isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit)


def problem_of(error: PlmError) -> HttpProblem:
    """Return what a user can fix as a problem; its sentence names no id, and is made safe to print."""
    return HttpProblem(422, printable(error))


def fields_of(errors: Sequence[Mapping[str, Any]], drop: frozenset[str] = frozenset()) -> list[FieldProblem]:
    """Return the errors of pydantic as fields; the parts of a place named in ``drop`` are no part of the body.

    What was given is not repeated: it may be a patient's.

    >>> fields_of([{"type": "int_parsing", "loc": ("body", "visits", 0, "age"), "msg": "Input should be ..."}])
    [FieldProblem(path='visits.0.age', message='a whole number is needed')]
    """
    places = [_place_of(error, drop) for error in errors]
    found = []
    for place, error in zip(places, errors, strict=True):
        # A list whose entries are wrong is called empty as well.
        inside = [other for other in places if len(other) > len(place) and other[: len(place)] == place]
        if not (error["type"] == "too_short" and inside):
            found.append(FieldProblem(".".join(place), _in_words(error)))
    return list(dict.fromkeys(found))[:50]


def _place_of(error: Mapping[str, Any], drop: frozenset[str]) -> tuple[str, ...]:
    place = [str(part) for part in error["loc"] if str(part) not in drop and part != "body"]
    # Of a date that can be written in two forms, both are tried.
    return tuple(place[:-1] if error["type"].startswith("date") and place[-1:] in (["date"], ["datetime"]) else place)


def _in_words(error: Mapping[str, Any]) -> str:
    """Say what is wrong as one says it to a person."""
    kind, limits = error["type"], error.get("ctx") or {}
    if kind.startswith("date"):
        return "a date such as 2024-05-31 is needed"
    if kind.startswith("int"):
        return "a whole number is needed"
    if kind in _WORDS:
        return _WORDS[kind].format(**limits)
    message = printable(error["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


#: What the errors of pydantic mean; its own words speak of types.
_WORDS: Final[Mapping[str, str]] = {
    "missing": "this field is needed",
    "extra_forbidden": "there is no such field",
    "string_type": "text is needed",
    "float_type": "a number is needed",
    "float_parsing": "a number is needed",
    "tuple_type": "a list is needed",
    "dict_type": "an object is needed",
    "model_type": "an object is needed",
    "model_attributes_type": "an object is needed",
    "too_short": "at least {min_length} is needed",
    "too_long": "at most {max_length} are allowed",
    "string_too_short": "this must not be empty",
    "string_too_long": "at most {max_length} characters are allowed",
    "string_pattern_mismatch": "this is not of the form that is needed: {pattern}",
    "greater_than": "this must be greater than {gt:g}",
    "greater_than_equal": "this must be at least {ge:g}",
    "less_than": "this must be less than {lt:g}",
    "less_than_equal": "this must be at most {le:g}",
}
