"""What a system fitted and predicted is checked where it enters the room: it must be kept, read again and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from patients_like_me.errors import PlmError
from patients_like_me.parts import in_few_words
from patients_like_me.systems.contract import Account, Fitted, System
from patients_like_me.systems.problem import Logits
from patients_like_me.tasks.kinds import LabelKind


def refuse_unusable(system: System, fitted: Any) -> None:
    """Refuse what a system fitted if it could not be kept and read again."""
    if not isinstance(fitted, Fitted):
        raise PlmError(
            f"fit of the system '{system.name}' returned a {type(fitted).__name__}, not a Fitted",
            remedy="correct the system; docs/extend.md has an example",
        )
    if not isinstance(fitted.account, Account):
        raise PlmError(
            f"the account of the system '{system.name}' is a {type(fitted.account).__name__}, not an Account",
            remedy="leave it out, or give an Account",
        )
    for name in ("arrays", "facts"):
        given = getattr(fitted, name)
        if not isinstance(given, Mapping) or not all(isinstance(each, str) for each in given):
            raise PlmError(
                f"the {name} of the system '{system.name}' are not a dict with names as keys",
                remedy="give a dict, empty where there is nothing to keep",
            )
    for name, kind in get_type_hints(Account).items():
        try:
            TypeAdapter(kind).validate_python(getattr(fitted.account, name), strict=True)
        except ValidationError as error:
            raise PlmError(
                f"'{name}' in the account of the system '{system.name}' cannot be kept ({error.errors()[0]['msg']})",
                remedy="give what Account declares: a list of sentences as notes, a whole number as best_epoch",
            ) from None
    told = {name: value for name, value in vars(fitted.account).items() if name != "graph"}
    try:
        json.dumps(told)
    except (TypeError, ValueError) as error:
        raise PlmError(
            f"the account of the system '{system.name}' does not survive JSON ({in_few_words(error)})",
            remedy="give text and plain numbers, not arrays or numbers of numpy",
        ) from None
    for name, array in fitted.arrays.items():
        # Wider numbers, such as float128, cannot be written.
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise PlmError(
                f"the array '{name}' of the system '{system.name}' does not hold numbers of at most 64 bits",
                remedy="text goes into 'facts', and a tensor is kept as numpy array",
            )
    facts = dict(fitted.facts)
    try:
        kept = json.loads(json.dumps(facts))
    except (TypeError, ValueError):
        kept = None
    if kept is None or _as_lists(facts) != kept:
        raise PlmError(
            f"the facts of the system '{system.name}' do not survive JSON",
            remedy="keep text, numbers, lists and dicts with names as keys; arrays go into 'arrays'",
        )


def _as_lists(value: Any) -> Any:
    """Return plain data with lists in place of tuples, as JSON gives it back."""
    if isinstance(value, Mapping):
        return {name: _as_lists(each) for name, each in value.items()}
    return [_as_lists(each) for each in value] if isinstance(value, (list, tuple)) else value


def checked_logits(system: System, logits: Any, kind: LabelKind, instances: int, outputs: int) -> Logits:
    """Return the logits of a system; another shape than [instances, outputs] is refused, and what is no number.

    An infinite logit is a probability of 0 or 1; what gives no probability is refused.
    """
    try:
        found: Logits = np.asarray(logits)
    except (ValueError, TypeError, RuntimeError) as error:
        raise PlmError(
            f"the system '{system.name}' gave logits that are not an array ({in_few_words(error)})",
            remedy="correct its predict: one row per instance, one column per output",
        ) from None
    if found.dtype.kind not in "fiub":
        raise PlmError(
            f"the system '{system.name}' gave logits of the type '{found.dtype}'",
            remedy="correct its predict: logits are real numbers",
        )
    if found.shape != (instances, outputs):
        raise PlmError(
            f"the system '{system.name}' gave logits of shape {found.shape} for {instances:,} instances with "
            f"{outputs:,} {'output' if outputs == 1 else 'outputs'}",
            remedy="correct its predict: one row per instance, one column per output",
        )
    with np.errstate(invalid="ignore", over="ignore"):
        probabilities = kind.probabilities(found)
    if not np.isfinite(probabilities).all():
        raise PlmError(
            f"some predictions of the system '{system.name}' are not numbers",
            remedy="use a smaller learning rate or a stronger penalty, or correct its predict",
        )
    return found
