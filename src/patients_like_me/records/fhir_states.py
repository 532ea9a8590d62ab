"""What FHIR says of a resource: whether it happened, and whether an encounter ended with a death."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.fhir_elements import best_coding
from patients_like_me.records.source_files import SourceTable

#: Resources of these states say that something did not happen.
_VOID: Final = {
    "Condition": ("refuted", "entered-in-error"),
    "Encounter": ("planned", "cancelled", "entered-in-error"),
    "Procedure": ("preparation", "not-done", "entered-in-error"),
    "MedicationRequest": ("draft", "cancelled", "entered-in-error"),
    "MedicationAdministration": ("not-done", "entered-in-error"),
    "MedicationStatement": ("not-taken", "entered-in-error"),
}
#: The other states that FHIR R4 knows; whoever writes one that it does not know may mean that it did not happen.
_VALID: Final = {
    "Encounter": ("arrived", "triaged", "in-progress", "onleave", "finished", "unknown"),
    "Procedure": ("in-progress", "on-hold", "stopped", "completed", "unknown"),
    "MedicationRequest": ("active", "on-hold", "completed", "stopped", "unknown"),
    "MedicationAdministration": ("in-progress", "on-hold", "completed", "stopped", "unknown"),
    "MedicationStatement": ("active", "completed", "intended", "stopped", "on-hold", "unknown"),
    "Condition": ("unconfirmed", "provisional", "differential", "confirmed"),
}
#: Takes the place of a code system where a file of one type holds another one, and where a state is not known.
_ANOTHER_TYPE: Final = "resource of another type"
_UNKNOWN_STATE: Final = "resource in an unknown state"
#: Codes for a discharge by death: the standard's own, and those of SNOMED CT (dead, died during the stay, died).
_DEATHS: Final = ("exp", "419099009", "371828006", "397709008")
#: The numbers for the same of the form on which hospitals of the United States bill; others use them for other things.
_BILLED: Final = "nubc.org"
_BILLED_DEATHS: Final = ("20", "40", "41", "42")
#: A code, display or text that begins with one of these words says the same.
_WORDS: Final = r"^\W*(patient\s+)?(has\s+)?(expired|died|deceased|dead)\b"


def _state(resource: str) -> pl.Expr:
    """Return the state of a resource in lower case and in one spelling; null where it is not given, unlike a blank."""
    given = pl.col("status")
    if resource == "Condition":
        concept = pl.col("verificationStatus")
        given = pl.coalesce(best_coding(concept, {}).struct.field("code"), concept.struct.field("text"))
    return given.str.strip_chars().str.to_lowercase().replace({"canceled": "cancelled"})


def is_unknown(resource: str) -> pl.Expr:
    """Say whether a resource is in a state that FHIR R4 does not know."""
    return (~_state(resource).is_in([*_VALID[resource], *_VOID[resource]])).fill_null(False)


def happened(resource: str) -> pl.Expr:
    """Say whether a resource tells of something that took place."""
    took_place = ~_state(resource).is_in(_VOID[resource]).fill_null(False)
    if resource == "MedicationRequest":
        # An order not to give a drug is not a drug.
        return took_place & ~pl.col("doNotPerform").fill_null(False)
    return took_place


def mark(resource: str) -> pl.Expr:
    """Return a mark in the place of the code system for a row that must be refused, null for others."""
    return (
        pl.when(pl.col("resourceType").ne_missing(resource))
        .then(pl.lit(_ANOTHER_TYPE))
        .when(is_unknown(resource))
        .then(pl.lit(_UNKNOWN_STATE))
    )


def refuse_marked(resource: str, table: SourceTable) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return a look at the code systems of a table that stops at the first marked row and names its place."""

    def look_up(keys: pl.DataFrame) -> pl.DataFrame:
        if (keys["system"] == _ANOTHER_TYPE).any():
            place = table.place_of(pl.col("resourceType").ne_missing(resource))
            raise PlmError(f"{place}: this is not a {resource}, unlike the first row", remedy="one type in each file")
        if (keys["system"] == _UNKNOWN_STATE).any():
            place = table.place_of(is_unknown(resource))
            raise PlmError(f"{place}: {unknown_state(resource)}", remedy="correct the value")
        return keys

    return look_up


def unknown_state(resource: str) -> str:
    """Return the sentence about a state that FHIR R4 does not know."""
    element = "verificationStatus" if resource == "Condition" else "status"
    return f"'{element}' must be one of {', '.join((*_VALID[resource], *_VOID[resource]))}"


def died(disposition: pl.Expr, own: Iterable[str]) -> pl.Expr:
    """Say whether a discharge disposition means death, by one of its codes or its words; null where it says nothing.

    Any of the codes may be the one: a hospital's own often goes before the standard's.
    """
    coding = disposition.struct.field("coding")
    code = _plain(pl.element().struct.field("code"))
    display = _plain(pl.element().struct.field("display"))
    is_billed = pl.element().struct.field("system").str.to_lowercase().str.contains(_BILLED, literal=True)
    is_death = code.is_in([*_DEATHS, *(word.lower() for word in own)]) | (is_billed & code.is_in(_BILLED_DEATHS))
    is_death |= code.str.contains(_WORDS) | display.str.contains(_WORDS)
    in_words = _plain(disposition.struct.field("text")).str.contains(_WORDS)
    by_code = coding.list.eval(is_death.fill_null(False)).list.any()
    return (
        pl.when(by_code.fill_null(False) | in_words.fill_null(False))
        .then(pl.lit(True))
        .when(coding.list.eval(code).list.drop_nulls().list.len() > 0)
        .then(pl.lit(False))
    )


def _plain(text: pl.Expr) -> pl.Expr:
    return text.str.strip_chars().str.to_lowercase()
