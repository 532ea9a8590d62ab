"""Instances that see more than they may, for tests of the audit."""

from __future__ import annotations

import polars as pl

from patients_like_me.records.cohort import Kind
from patients_like_me.tasks.instances import Instances


class SeesLateCodes(Instances):
    """Instances that forget the times of the current visit."""

    def current_codes(self, kind: Kind) -> pl.DataFrame:
        """Return all codes of the current visits, whenever they were known."""
        given = {name: getattr(self, name) for name in Instances.__dataclass_fields__}
        forgetful = self.settings.model_copy(update={"inputs": "retrospective"})
        return Instances(**{**given, "settings": forgetful}).current_codes(kind)


def without_times(honest: Instances) -> SeesLateCodes:
    """Return the same instances, which now see codes of the current visit that were not known yet."""
    return SeesLateCodes(**{name: getattr(honest, name) for name in Instances.__dataclass_fields__})
