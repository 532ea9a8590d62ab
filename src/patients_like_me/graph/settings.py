"""The settings of a patient graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from patients_like_me.graph.people import PersonRule

References = Literal["cohort", "bank"]
SelfLoop = Literal["one", "own_codes"]


class GraphSettings(BaseModel):
    """Everything that decides which edges a graph has; the defaults are the paper's.

    >>> GraphSettings(max_neighbors=32).tau
    8
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tau: int = Field(8, description="an edge joins two instances that share at least this many diagnoses")
    max_neighbors: int | None = Field(
        None, description="keep the strongest neighbours of each instance, this many; none keeps all"
    )
    self_loop: SelfLoop = Field(
        "one", description="weight of an instance's edge to itself: 1, or the number of its own diagnoses"
    )
    references: References = Field(
        "cohort",
        description=(
            "one graph per split, as in the paper, or every evaluated instance against the labelled training "
            "instances only"
        ),
    )

    same_sex: bool = Field(False, description="link instances of patients of the same sex only")
    max_age_difference: int | None = Field(
        None, ge=0, description="link instances only if the patients' ages differ by at most this many years"
    )

    @property
    def person_rule(self) -> PersonRule:
        """Who may be a neighbour of whom by sex and age."""
        from patients_like_me.graph.people import PersonRule

        return PersonRule(self.same_sex, self.max_age_difference)

    @property
    def compares_people(self) -> bool:
        """Whether sex or age decides who may be a neighbour."""
        return self.same_sex or self.max_age_difference is not None

    @property
    def either_end_keeps(self) -> bool:
        """Whether an edge stays if either end names it; else each instance just receives from those it names."""
        return self.max_neighbors is not None and self.references == "cohort"

    @property
    def is_directed(self) -> bool:
        """Whether training instances may receive without being received: those of a bank with ``max_neighbors``."""
        return self.max_neighbors is not None and self.references == "bank"

    @field_validator("tau")
    @classmethod
    def _tau_excludes_something(cls, tau: int) -> int:
        if tau < 1:
            raise PydanticCustomError("tau", "any two patients share at least 0 diagnoses, so the smallest tau is 1")
        return tau

    @field_validator("max_neighbors")
    @classmethod
    def _some_neighbor_is_kept(cls, number: int | None) -> int | None:
        if number is not None and number < 1:
            raise PydanticCustomError("max_neighbors", "give 1 or more, or leave it out to keep all")
        return number

    def differences(self, other: GraphSettings) -> list[str]:
        """Return in words where two settings differ.

        >>> GraphSettings().differences(GraphSettings(tau=9))
        ['tau is 8 in the one and 9 in the other']
        """
        return [
            f"{name} is {value!r} in the one and {getattr(other, name)!r} in the other"
            for name, value in self
            if value != getattr(other, name)
        ]
