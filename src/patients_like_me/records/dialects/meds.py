"""What the codes of a MEDS dataset mean: an ordered list of rules, the first that matches a code decides.

    {"name": "our hospital",
     "rules": [{"match": "ADMIT//*", "role": "admission"},
               {"match": "DX//ICD10//{code}", "role": "diagnosis", "system": "icd10"}]}

In ``match``, ``*`` stands for anything and ``{code}`` for the part that is the code (or the value of a demographic).
"""

from __future__ import annotations

import re
from typing import Final, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from patients_like_me.codes.registry import KINDS, systems_of
from patients_like_me.records.cohort import DEMOGRAPHICS
from patients_like_me.records.dialects.loading import load_dialect, shipped_dialects

IGNORED: Final = "ignored"
#: A dialect suits a dataset in which these are found.
_WANTED: Final = ("admission", "discharge", *KINDS)

Role = Literal[
    "admission",
    "discharge",
    "birth",
    "death",
    "sex",
    "age",
    "insurance",
    "language",
    "religion",
    "marital_status",
    "ethnicity",
    "diagnosis",
    "procedure",
    "medication",
    "ignored",
]


class Rule(BaseModel):
    """What the codes of one form mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    match: str = Field(min_length=1, description="the form of the code: * is anything, {code} the wanted part")
    role: Role
    system: str = Field("", description="the code system, for a diagnosis, procedure or medication")
    values: dict[str, str] = Field(default_factory=dict, description="how values are written, such as Male for M")
    column: str = Field("", description="a column that holds the code, such as text_value, in place of {code}")
    first: dict[str, str] = Field(default_factory=dict, description="columns with codes that go first, and systems")
    died: bool = Field(False, description="a discharge by death")
    dated: Literal["moment", "day", "discharge"] = Field(
        "moment", description="the time is exact, a whole day (at midnight), or the end of the visit"
    )
    hours_before: int = Field(0, ge=0, le=168, description="belongs to a visit that begins within these hours")
    why: str = Field("", description="why codes are ignored")

    @model_validator(mode="after")
    def _is_whole(self) -> Rule:
        if self.match.count("{code}") > 1:
            raise ValueError("{code} may occur once")
        valued = self.role in (*KINDS, "sex", "age", *DEMOGRAPHICS)
        if valued and "{code}" not in self.match and not self.column:
            raise ValueError(f"a rule for {self.role} needs {{code}} in 'match', or a 'column'")
        if self.role in KINDS:
            known = [system.name for system in systems_of(self.role)]
            for system in (self.system, *self.first.values()):
                if system not in known:
                    raise ValueError(f"'{system}' is not a code system of a {self.role}: use one of {', '.join(known)}")
        elif self.system or self.first or self.column:
            raise ValueError("'system', 'first' and 'column' are for diagnoses, procedures and medications")
        return self

    @property
    def pattern(self) -> str:
        """The form as a regular expression with one group, the wanted part; upper and lower case are the same.

        >>> Rule(match="GENDER//{code}", role="sex").pattern
        '(?i)^GENDER//(.*)$'
        """
        parts = re.split(r"(\*|\{code\})", self.match)
        signs = {"*": ".*", "{code}": "(.*)"}
        return f"(?i)^{''.join(signs.get(part) or re.escape(part) for part in parts)}$"


class MedsDialect(BaseModel):
    """The meaning of a dataset's codes, and of the columns that it has beside those of MEDS."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    about: str = ""
    visit_id: str = Field("", description="a column with the id of the visit")
    visits: Literal["events", "subject"] = Field(
        "events", description="visits are rebuilt from their events, or a subject is one visit"
    )
    columns: dict[str, str] = Field(default_factory=dict, description="demographics, and the columns that hold them")
    unknown: tuple[str, ...] = Field((), description="values of demographics that mean: not known")
    oldest_age: int | None = Field(None, ge=0, description="older patients get this age")
    unordered: str = Field("", description="why the visits of a patient cannot be ordered, where that is so")
    rules: tuple[Rule, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_visits(self) -> MedsDialect:
        for role in ("admission", "discharge"):
            if not any(rule.role == role for rule in self.rules):
                raise ValueError(f"no rule has the role '{role}'")
        if unknown := sorted(set(self.columns) - {*DEMOGRAPHICS, "site", "unit"}):
            raise ValueError(f"'{unknown[0]}' is not a demographic: use {', '.join((*DEMOGRAPHICS, 'site', 'unit'))}")
        return self

    def extra_columns(self) -> list[str]:
        """Return the columns beside subject_id, time and code that the dialect can use, each once."""
        of_rules = [name for rule in self.rules for name in (rule.column, *rule.first) if name]
        return list(dict.fromkeys([name for name in (self.visit_id, *self.columns.values()) if name] + of_rules))

    def meanings(self, codes: pl.Series) -> pl.DataFrame:
        """Return for each code the number of the rule that decides (null where none matches) and the wanted part.

        >>> rules = [{"match": "IN//*", "role": "admission"}, {"match": "OUT", "role": "discharge"}]
        >>> rules += [{"match": "DX//{code}", "role": "diagnosis", "system": "icd10"}]
        >>> dialect = MedsDialect(name="x", rules=rules)
        >>> dialect.meanings(pl.Series(["DX//I50", "IN//a", "LAB"])).rows()
        [('DX//I50', 2, 'I50'), ('IN//a', 0, None), ('LAB', None, None)]
        """
        text = pl.col("given")
        number, part = pl.lit(None, dtype=pl.Int32), pl.lit(None, dtype=pl.String)
        for place, rule in reversed(list(enumerate(self.rules))):
            matches = text.str.contains(rule.pattern)
            wanted = text.str.extract(rule.pattern, 1) if "{code}" in rule.match else pl.lit(None, dtype=pl.String)
            if rule.values:
                wanted = wanted.replace(rule.values)
            number = pl.when(matches).then(pl.lit(place, dtype=pl.Int32)).otherwise(number)
            part = pl.when(matches).then(wanted).otherwise(part)
        frame = pl.DataFrame({"given": codes}, schema={"given": pl.String})
        return frame.select("given", number.alias("rule"), part.alias("part"))

    def suits(self, codes: pl.Series) -> bool:
        """Tell whether admissions, discharges and codes of every kind that the dialect knows are among these codes."""
        found = {self.rules[number].role for number in self.meanings(codes)["rule"].drop_nulls().unique()}
        known = {rule.role for rule in self.rules}
        return all(role in found for role in _WANTED if role in known)


def find_meds_dialect(written: str) -> MedsDialect:
    """Return a dialect by its shipped name or its path."""
    return load_dialect(MedsDialect, "meds", written)


def shipped_meds_dialects() -> dict[str, MedsDialect]:
    """Return the shipped dialects by name."""
    return {name: find_meds_dialect(name) for name in shipped_dialects("meds")}
