"""Finding a dialect: one that is shipped, by its name, or a JSON file of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from patients_like_me.errors import PlmError
from patients_like_me.files import read_json
from patients_like_me.plain_text import printable

_FOLDER = Path(__file__).parent
Dialect = TypeVar("Dialect", bound=BaseModel)


def shipped_dialects(form: str) -> list[str]:
    """Return the names of the dialects that are shipped for a form.

    >>> shipped_dialects("meds")
    ['eicu', 'mimic4']
    """
    return sorted(path.stem.removeprefix(f"{form}_") for path in _FOLDER.glob(f"{form}_*.json"))


def file_of_dialect(form: str, written: str) -> list[Path]:
    """Return the file of a dialect of the user's own; those that are shipped belong to the version of the package.

    >>> file_of_dialect("meds", "mimic4"), file_of_dialect("meds", "ours.json")
    ([], [PosixPath('ours.json')])
    """
    return [] if written in ("", *shipped_dialects(form)) else [Path(written).expanduser()]


def load_dialect(model: type[Dialect], form: str, written: str) -> Dialect:
    """Read and check a dialect by its shipped name or its path."""
    shipped = shipped_dialects(form)
    own = file_of_dialect(form, written)
    path = own[0] if own else _FOLDER / f"{form}_{written}.json"
    if not path.is_file():
        raise PlmError(
            f"there is no {form.upper()} dialect '{printable(written)}'",
            remedy=f"give one of {', '.join(shipped)}, or the path of a JSON file (docs/{form}.md)",
        )
    content = read_json(path, what="dialect")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(str(part + 1) if isinstance(part, int) else part for part in problem["loc"])
        sentence = problem["msg"].removeprefix("Value error, ")
        raise PlmError(
            f"the dialect '{path}' is not valid at '{printable(place) or 'its top'}': {printable(sentence)}",
            remedy=f"correct it; docs/{form}.md describes every entry",
        ) from None
