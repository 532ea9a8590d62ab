"""Prompts: the text a language model reads for each instance, within its token budget.

All tasks share the paper's template, section by section and in its words: "Demographics:", the number of visits, "In
visit 1, diagnoses: ...; procedures: ...; medications: ...", "Current visit:" with what the task allows, "Task:" and
"Output format:". The template says "ICU visits"; a visit is a hospital admission. The paper leaves open how a missing
field or an empty list is written ("not recorded", "none" here), the order of codes (by code), whether the number of
visits counts the current one (it does), and what is cut from a history beyond 512 tokens: here whole earliest visits go
first, which keep their numbers; then the longest lists of the current visit are shortened; the current visit itself and
the task always stay.

The ``brief`` form is for encoders: their embedding is the mean over all tokens, so words that are in every prompt
(the question, "not recorded", "none") only blur it and cost time. It leaves them out, and adds age and sex.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import DEMOGRAPHICS, KINDS, TABLE_OF_KIND, Kind
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.tokens import TokenCounter

PAPER_BUDGET = 512
_DEMOGRAPHIC_TITLES = {name: name.replace("_", " ").capitalize() for name in DEMOGRAPHICS}

#: The names of a visit's codes by kind; a kind that the task does not allow is absent.
VisitCodes = Mapping[Kind, Sequence[str]]


@dataclass(frozen=True)
class PromptParts:
    """One instance before it is written: what a prompt is made of."""

    demographics: str
    earlier: Sequence[VisitCodes]
    current: VisitCodes
    question: str
    answer: str
    brief: bool = False

    def write(self, *, skip_visits: int = 0, longest_list: int | None = None) -> str:
        """Write the prompt without the first ``skip_visits`` visits, the current lists cut to ``longest_list``."""
        shown = [(number, codes) for number, codes in enumerate(self.earlier, start=1) if number > skip_visits]
        number_of_visits = len(self.earlier) + 1
        if self.brief:
            lines = [
                f"Patient: {self.demographics}",
                f"Hospital visits so far: {number_of_visits}.",
                *(f"Visit {number}: {_filled_lists(codes)}" for number, codes in shown),
                f"Current visit: {_filled_lists(self.current, longest_list)}",
            ]
        else:
            lines = [
                f"Demographics: {self.demographics}",
                f"The patient has {number_of_visits} ICU visits.",
                *(f"In visit {number}, {_lists(codes)}" for number, codes in shown),
                f"Current visit: {_lists(self.current, longest_list)}",
                f"Task: {self.question}",
                f"Output format: {self.answer}",
            ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Prompts:
    """The prompts of all instances, and what had to be cut from each to keep the budget."""

    texts: list[str]
    tokens: npt.NDArray[np.int64]
    visits_cut: npt.NDArray[np.int64]
    codes_cut: npt.NDArray[np.int64]
    budget: int

    def summary(self) -> dict[str, float]:
        """Return how much was cut in all."""
        return {
            "prompts": len(self.texts),
            "budget": self.budget,
            "mean_tokens": float(self.tokens.mean()) if len(self.texts) else 0.0,
            "prompts_with_visits_cut": int((self.visits_cut > 0).sum()),
            "visits_cut": int(self.visits_cut.sum()),
            "prompts_with_codes_cut": int((self.codes_cut > 0).sum()),
            "codes_cut": int(self.codes_cut.sum()),
        }


def write_prompts(
    instances: Instances,
    count_tokens: TokenCounter,
    *,
    budget: int = PAPER_BUDGET,
    rows: Sequence[int] | None = None,
) -> Prompts:
    """Write the prompt of every instance (or of the given rows) within ``budget`` tokens."""
    parts = parts_of_instances(instances, rows)
    texts = [part.write() for part in parts]
    tokens = count_tokens(texts)
    visits_cut = np.zeros(len(parts), dtype=np.int64)
    codes_cut = np.zeros(len(parts), dtype=np.int64)
    for position, part in enumerate(parts):
        if tokens[position] > budget:
            fitted = fit_to_budget(part, count_tokens, budget)
            texts[position], tokens[position], visits_cut[position], codes_cut[position] = fitted
    return Prompts(texts, np.array(tokens, dtype=np.int64), visits_cut, codes_cut, budget)


def fit_to_budget(part: PromptParts, count_tokens: TokenCounter, budget: int) -> tuple[str, int, int, int]:
    """Return the longest prompt that keeps the budget: its text, tokens, visits cut and codes cut."""

    def tokens_of(skip: int, longest: int | None) -> int:
        return count_tokens([part.write(skip_visits=skip, longest_list=longest)])[0]

    everything = len(part.earlier)
    skip, longest = everything, None
    if tokens_of(everything, None) <= budget:
        skip = _smallest(0, everything, lambda visits: tokens_of(visits, None) <= budget)
    else:
        limit = max((len(codes) for codes in part.current.values()), default=0)
        if (smallest := tokens_of(everything, 0)) > budget:
            raise PlmError(
                f"a budget of {budget} tokens is too small for a prompt without any code ({smallest} tokens)",
                remedy="raise the budget",
            )
        longest = limit - _smallest(0, limit, lambda cut: tokens_of(everything, limit - cut) <= budget)
    text = part.write(skip_visits=skip, longest_list=longest)
    cut = 0 if longest is None else sum(max(len(codes) - longest, 0) for codes in part.current.values())
    return text, count_tokens([text])[0], skip, cut


def parts_of_instances(instances: Instances, rows: Sequence[int] | None = None) -> list[PromptParts]:
    """Gather the parts of the prompts of all instances, or of the given rows in their order."""
    chosen = list(range(len(instances))) if rows is None else [int(row) for row in rows]
    frame = instances.frame
    wanted = frame.select("instance")[chosen]["instance"].unique()
    history = instances.history.filter(pl.col("instance").is_in(wanted.implode()))
    allowed = instances.task.inputs_of_current_visit(instances.settings)
    codes = {kind: _named_lists(instances, kind, wanted) for kind in KINDS}
    visits_of: dict[int, list[int]] = dict(history.group_by("instance", maintain_order=True).agg("visit").iter_rows())
    brief = instances.settings.prompt == "brief"
    demographics = _recorded_demographics(instances) if brief else _demographics(instances)
    visit_of_instance = frame["visit"].to_list()
    return [
        PromptParts(
            demographics=demographics[visit_of_instance[row]],
            earlier=[{kind: codes[kind].get((row, visit), ()) for kind in KINDS} for visit in visits_of.get(row, ())],
            current={kind: codes[kind].get((row, visit_of_instance[row]), ()) for kind in allowed},
            question=instances.task.question,
            answer=instances.task.answer,
            brief=brief,
        )
        for row in chosen
    ]


def _named_lists(instances: Instances, kind: Kind, wanted: pl.Series) -> dict[tuple[int, int], list[str]]:
    """Return the names of the codes that each instance may see, by instance and visit."""
    seen = instances.inputs(kind).filter(pl.col("instance").is_in(wanted.implode()))
    named = seen.with_columns(pl.col("code").replace(instances.cohort.names(kind)).alias("name"))
    lists = named.group_by("instance", "visit", maintain_order=True).agg("name")
    return {(instance, visit): names for instance, visit, names in lists.iter_rows()}


def _demographics(instances: Instances) -> list[str]:
    """Write the demographics line of every visit of the cohort."""
    fields = [
        pl.concat_str(
            pl.lit(f"{_DEMOGRAPHIC_TITLES[name]}: "),
            pl.col(name).fill_null("not recorded").str.to_lowercase(),
        )
        for name in DEMOGRAPHICS
    ]
    written = instances.cohort.visits.sort("visit").select(pl.concat_str(*fields, separator="; ") + ".")
    return written.to_series().to_list()


def _recorded_demographics(instances: Instances) -> list[str]:
    """Write age, sex and the demographics that are recorded, for every visit of the cohort."""
    sex = instances.cohort.patients.select("subject", "sex")
    visits = instances.cohort.visits.sort("visit").join(sex, on="subject", how="left", maintain_order="left")
    fields = [
        pl.concat_str(pl.lit(f"{name.replace('_', ' ')} "), pl.col(name).cast(pl.String).str.to_lowercase())
        for name in ("age", "sex", *DEMOGRAPHICS)
    ]
    # A null field is left out of the list, where concat_str would make the whole line null.
    written = visits.select(pl.concat_list(fields).list.drop_nulls().list.join(", ") + ".")
    return written.to_series().to_list()


def _filled_lists(codes: VisitCodes, longest_list: int | None = None) -> str:
    """Write the lists that have a code, without saying which have none."""
    filled = {kind: codes[kind][:longest_list] for kind in KINDS if codes.get(kind)}
    lists = "; ".join(f"{TABLE_OF_KIND[kind]}: {', '.join(names)}" for kind, names in filled.items() if names)
    return f"{lists or 'no codes'}."


def _lists(codes: VisitCodes, longest_list: int | None = None) -> str:
    if not codes:
        return "no codes are known yet."
    return (
        "; ".join(
            f"{TABLE_OF_KIND[kind]}: {', '.join(codes[kind][:longest_list]) or 'none'}"
            for kind in KINDS
            if kind in codes
        )
        + "."
    )


def _smallest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number in ``low..high`` for which ``holds`` is true, knowing that ``high`` is one."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
