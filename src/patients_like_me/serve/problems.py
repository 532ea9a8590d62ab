"""What goes wrong in a request, as problem+json (RFC 9457): a title, a sentence, and the fields that are meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True)
class FieldProblem:
    """What is wrong with one field of a request; ``path`` is written with dots, from the body's root."""

    path: str
    message: str


class Problem(Exception):  # noqa: N818 - RFC 9457 calls it so
    """A request that is refused, in words.

    >>> Problem(404, "there is no patient 'P9'").body()["title"]
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


class FieldProblems(Problem):
    """A body whose fields are not what they should be, field by field."""

    def __init__(self, fields: Sequence[FieldProblem]) -> None:
        number = len(fields)
        named = f"the field '{fields[0].path}' is wrong" if fields[0].path else "the request is wrong"
        what = named if number == 1 else f"{number} fields are wrong"
        super().__init__(422, f"{what}: {fields[0].message}", fields=fields)


def problem_of(error: PlmError) -> Problem:
    """Return what a user can fix as a problem; its sentence names no id, and is made safe to print."""
    return Problem(422, printable(error))


def fields_of(errors: Sequence[Mapping[str, Any]], drop: frozenset[str] = frozenset()) -> list[FieldProblem]:
    """Return the errors of pydantic as fields; the parts of a place named in ``drop`` are no part of the body.

    What was given is not repeated: it may be a patient's.

    >>> fields_of([{"loc": ("body", "visits", 0, "age"), "msg": "Input should be a valid integer"}])
    [FieldProblem(path='visits.0.age', message='input should be a valid integer')]
    """
    found = []
    for error in errors:
        place = [str(part) for part in error["loc"] if str(part) not in drop and part != "body"]
        message = printable(error["msg"]).removeprefix("Value error, ")
        found.append(FieldProblem(".".join(place), message[:1].lower() + message[1:]))
    return list(dict.fromkeys(found))[:50]
