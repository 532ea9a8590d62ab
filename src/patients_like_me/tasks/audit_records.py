"""Checks of the audit on patients, visits and events alone; derived columns are recomputed, never trusted."""

from __future__ import annotations

from typing import Final

import polars as pl

from patients_like_me.plain_text import FEW, is_small, shown_count
from patients_like_me.records.cohort import KINDS, TABLE_OF_KIND, Cohort
from patients_like_me.tasks.audit_findings import Finding, cannot_be_checked, finding
from patients_like_me.tasks.instances import Instances

#: A code may be dated a day before the admission or after the discharge: dates without a clock, orders, late entries.
_SLACK: Final = pl.duration(days=1)
#: The share of codes that hospitals usually date wrongly or not at all; what is above it has another cause.
_USUAL: Final = 0.02
#: Fewer pairs of consecutive visits tell nothing about how alike such visits are.
_FEWEST_PAIRS: Final = 20
#: Shorter histories are alike by chance.
SHORTEST_HISTORY: Final = 10
#: The share of patients or instances of that length which are alike by chance among thousands.
USUALLY_ALIKE: Final = 0.005
#: The station of the flow after which the next admission of every visit was noted.
_BEFORE_FILTERS: Final = "admitted before death"


def visits_numbered_in_order(cohort: Cohort) -> Finding:
    """Compare the numbers of the visits and of a patient's visits with the order of the rows."""
    visits = cohort.visits.with_row_index("row")
    new_patient = (pl.col("subject") != pl.col("subject").shift(1)).fill_null(True)
    start = pl.when(new_patient).then(pl.col("row")).forward_fill()
    wrong = visits.filter(
        (pl.col("visit") != pl.col("row"))
        | (pl.col("position") != pl.col("row") - start)
        | (pl.col("sequence") > pl.col("position"))
        # A patient whose rows are in two places would have two histories.
        | (new_patient & (pl.col("subject").cum_count().over("subject") > 1))
    )
    meaning = "visits whose number or place in the patient's history is not that of their row"
    return finding("visits numbered in order", visits.height, wrong.height, meaning)


def visits_left_out(cohort: Cohort) -> int | None:
    """Return how many visits were left out after the next admissions had been noted; None where that is not known."""
    flow = cohort.about.get("flow")
    noted = [step["visits"] for step in flow or () if step["name"] == _BEFORE_FILTERS]
    return noted[0] - cohort.visits.height if noted else None


def next_admissions(cohort: Cohort) -> pl.DataFrame:
    """Return ``visit`` and ``next``: when the patient was admitted next, from the admission times alone."""
    keys = ["subject", "admission_time", "discharge_time", "visit"]
    dated = cohort.visits.filter(pl.col("admission_time").is_not_null()).select(keys).sort(keys, nulls_last=True)
    return dated.select("visit", pl.col("admission_time").shift(-1).over("subject").alias("next"))


def next_admission_recomputed(instances: Instances) -> Finding:
    """Compare every noted next admission with the visits' own times.

    A visit that a filter left out may have come in between: then the noted one is earlier than that of the next visit
    in the cohort, and at most as many visits as were left out can differ so.
    """
    cohort, name = instances.cohort, "next admission recomputed"
    meaning = "visits whose next admission is not that of the patient's next visit"
    if cohort.unordered:
        filled = cohort.visits.height - cohort.visits["next_admission_time"].null_count()
        return finding(name, cohort.visits.height, filled, f"{meaning} ({cohort.unordered})")
    visits = cohort.visits.select("visit", "subject", "admission_time", "next_admission_time")
    both = visits.join(next_admissions(cohort), on="visit", how="inner")
    # Of visits that begin together either may be called the first one: their next admissions are compared as a set.
    same = ["subject", "admission_time"]
    noted, own = (
        both.sort(*same, column, nulls_last=True).get_column(column) for column in ("next_admission_time", "next")
    )
    pairs = pl.DataFrame({"noted": noted, "own": own, "admitted": both.sort(*same)["admission_time"]})
    impossible = pairs.filter(
        (pl.col("noted") > pl.col("own")).fill_null(False)
        | (pl.col("noted").is_null() & pl.col("own").is_not_null())
        | (pl.col("noted") < pl.col("admitted")).fill_null(False)
    ).height
    differing = pairs.filter(~pl.col("noted").eq_missing(pl.col("own"))).height - impossible
    left_out = visits_left_out(cohort)
    if left_out is not None:
        impossible += max(0, differing - left_out)
        meaning += f" ({shown_count(left_out)} visits were left out by filters, as many may differ)" if left_out else ""
    return finding(name, pairs.height, impossible, meaning, because="no visit has an admission time")


def died_and_came_back(instances: Instances) -> Finding:
    """Look for visits after one in which the patient died."""
    visits = instances.cohort.visits.sort("subject", "visit")
    died = visits.filter(pl.col("died")).select(
        "subject",
        pl.col("visit").alias("last"),
        pl.col("sequence").alias("place"),
        (pl.col("discharge_time").fill_null(pl.col("admission_time"))).alias("end"),
    )
    others = visits.join(died, on="subject").filter(pl.col("visit") != pl.col("last"))
    name, because = "no return after death", "no visit ends with the patient's death"
    meaning = "visits that begin after a visit in which the patient died"
    if instances.cohort.unordered or died["end"].is_null().all():
        # Without dates a few visits are in the wrong order in every source.
        later = others.filter(pl.col("sequence") > pl.col("place"))["visit"].n_unique()
        found, meaning = above_the_usual(later, died.height, meaning)
        return finding(name, died.height, found, meaning, bad="warning", because=because)
    after = others.filter((pl.col("admission_time") > pl.col("end") + _SLACK).fill_null(False))
    return finding(name, died.height, after["visit"].n_unique(), meaning, because=because)


def codes_in_their_visit(instances: Instances) -> Finding:
    """Look for dated codes that were recorded during another visit of the patient than the one they are given to."""
    cohort, name = instances.cohort, "codes in the visit of their time"
    meaning = "codes recorded during another visit of the patient, such as the next one"
    if cohort.unordered:
        return cannot_be_checked(name, meaning, cohort.unordered)
    visits = cohort.visits.select("visit", "subject", "admission_time", "discharge_time")
    dated = pl.concat([table.filter(pl.col("time").is_not_null()) for table in cohort.codes.values()])
    dated = dated.join(visits, on="visit")
    outside = dated.filter(
        (pl.col("time") < pl.col("admission_time") - _SLACK) | (pl.col("time") > pl.col("discharge_time") + _SLACK)
    ).with_row_index("code_row")
    others = visits.rename({"visit": "other", "admission_time": "begins", "discharge_time": "ends"})
    elsewhere = outside.join(others, on="subject").filter(
        (pl.col("other") != pl.col("visit")) & pl.col("time").is_between(pl.col("begins"), pl.col("ends"))
    )
    found, meaning = above_the_usual(elsewhere["code_row"].n_unique(), dated.height, meaning)
    return finding(name, dated.height, found, meaning, because="no code has a time of its own")


def above_the_usual(found: int, looked_at: int, meaning: str, *, usual: float = _USUAL) -> tuple[int, str]:
    """Return what a check found, or 0 with a remark where it is no more than hospitals' records usually have."""
    if not found or found > usual * looked_at:
        return found, meaning
    # The share of a small number would give the number away.
    share = FEW if is_small(found) else f"{found / looked_at:.2%}"
    return 0, f"{meaning} (a few, {share}, which is usual)"


def codes_after_discharge(instances: Instances) -> Finding:
    """Look among retrospective inputs for codes of the current visit that are dated after its discharge."""
    name, meaning = "codes dated after discharge", "codes of the current visit dated more than a day after its end"
    if instances.settings.inputs != "retrospective":
        return Finding(name, "not applicable", 0, 0, "inputs 'known' leave such codes out")
    ends = instances.cohort.visits.select("visit", "discharge_time")
    looked_at = found = 0
    for kind in KINDS:
        codes = instances.current_codes(kind).join(instances.cohort.codes[kind], on=["visit", "code"])
        dated = codes.filter(pl.col("time").is_not_null()).join(ends, on="visit")
        looked_at += dated.height
        found += dated.filter((pl.col("time") > pl.col("discharge_time") + _SLACK).fill_null(False)).height
    found, meaning = above_the_usual(found, looked_at, meaning)
    return finding(name, looked_at, found, meaning, bad="warning", because="no code of a current visit has a time")


def undated_codes(instances: Instances) -> Finding:
    """Count, with inputs ``known``, codes of the current visit without a time where others of the kind have one."""
    name, meaning = "undated codes", "codes of the current visit without a time, which count as known"
    if instances.settings.inputs != "known":
        return Finding(name, "not applicable", 0, 0, "retrospective inputs: times do not matter")
    looked_at = found = 0
    never_dated = []
    for kind in KINDS:
        codes = instances.current_codes(kind).join(instances.cohort.codes[kind], on=["visit", "code"])
        undated = codes["time"].null_count()
        if codes.height and undated == codes.height:
            never_dated.append(TABLE_OF_KIND[kind])
            continue
        looked_at += codes.height
        found += undated
    because = (
        f"no time is given for any of the {' and '.join(never_dated)}: they count as known at discharge"
        if never_dated
        else "no code of a current visit is an input"
    )
    found, meaning = above_the_usual(found, looked_at, meaning)
    return finding(name, looked_at, found, meaning, bad="warning", because=because)


def next_visits_codes(instances: Instances) -> Finding:
    """Compare the codes of each patient's last visit but one with those of the last, in both directions.

    Without a leak the share of the last visit's codes that the one before has is about the share of that one's codes
    that the last has. Codes that were copied back make the first one far larger; codes that were moved back leave last
    visits equal to the one before, or bare.
    """
    cohort, name = instances.cohort, "next visit's codes"
    meaning = "kinds of code whose codes of a patient's last visit are already in the visit before it"
    looked_at, signs = 0, []
    visits = cohort.visits.select("visit", "subject", "sequence")
    last = visits.group_by("subject").agg(pl.col("visit").max(), pl.col("sequence").max())
    pairs = last.select("subject", pl.col("visit").alias("last"), pl.col("sequence").alias("place")).join(
        visits, on="subject"
    )
    pairs = pairs.filter((pl.col("visit") + 1 == pl.col("last")) & (pl.col("sequence") < pl.col("place")))
    for kind in KINDS:
        codes = cohort.codes[kind].select("visit", "code").unique()
        sizes = codes.group_by("visit").len()
        shared = pairs.join(codes, on="visit").join(codes.rename({"visit": "last"}), on=["last", "code"], how="semi")
        counted = (
            pairs.join(sizes, on="visit", how="left")
            .join(sizes.rename({"visit": "last", "len": "of_last"}), on="last", how="left")
            .join(shared.group_by("visit").agg(pl.len().alias("shared")), on="visit", how="left")
            .with_columns(pl.col("len", "of_last", "shared").fill_null(0))
            .filter(pl.max_horizontal("len", "of_last") >= 3)
        )
        if counted.height < _FEWEST_PAIRS:
            continue
        looked_at += counted.height
        both = counted.filter((pl.col("len") > 0) & (pl.col("of_last") > 0))
        bare, bare_before = (counted.filter(pl.col(size) == 0).height / counted.height for size in ("of_last", "len"))
        if bare > 0.9 and bare_before < 0.1:
            signs.append(f"{TABLE_OF_KIND[kind]}: {bare:.0%} of last visits have none, as if moved to the visit before")
        if both.height >= _FEWEST_PAIRS:
            forward, backward = (float((both["shared"] / both[size]).mean()) for size in ("of_last", "len"))  # type: ignore[arg-type]
            if (forward >= 0.9 and forward - backward >= 0.15) or forward - backward >= 0.35 or backward >= 0.97:
                signs.append(f"{TABLE_OF_KIND[kind]} {forward:.0%}, the other way round {backward:.0%}")
    meaning += f" ({'; '.join(signs)})" if signs else ""
    because = f"fewer than {_FEWEST_PAIRS} pairs of consecutive visits have codes"
    return finding(name, looked_at, len(signs), meaning, bad="warning", because=because)


def near_duplicate_patients(instances: Instances) -> Finding:
    """Look for patients of two splits whose whole histories are equal but for one code more, less or other.

    A history is the set of its codes with their visit's place, so shifted dates do not hide it. The set has one number,
    the exclusive or of its codes' numbers; without any one code it has another. Two patients that share one of these
    numbers differ in one code at most on either side.
    """
    name, meaning = "near-duplicate patients", "patients whose history equals one of another split but for one code"
    splits = instances.frame.select("subject", "split").unique("subject", keep="first")
    places = instances.cohort.visits.select("visit", "subject", "position")
    items = pl.concat(
        [
            instances.cohort.codes[kind]
            .join(places, on="visit")
            .select("subject", pl.struct("position", pl.lit(kind).alias("kind"), "code").hash(seed=7).alias("item"))
            for kind in KINDS
        ]
    ).unique()
    whole = items.group_by("subject").agg(pl.col("item").bitwise_xor().alias("whole"), pl.len().alias("items"))
    whole = whole.filter(pl.col("items") >= SHORTEST_HISTORY).join(splits, on="subject")
    if whole["split"].n_unique() < 2:
        return cannot_be_checked(name, meaning, f"too few histories have {SHORTEST_HISTORY} codes or more")
    without_one = items.join(whole, on="subject").select(
        "subject", "split", (pl.col("whole") ^ pl.col("item")).alias("number")
    )
    numbers = pl.concat([whole.select("subject", "split", pl.col("whole").alias("number")), without_one])
    shared = numbers.filter(pl.col("split").n_unique().over("number") > 1)
    # A few alike among thousands are chance.
    found, meaning = above_the_usual(shared["subject"].n_unique(), whole.height, meaning, usual=USUALLY_ALIKE)
    return finding(name, whole.height, found, meaning, bad="warning")


def similar_ids_across_splits(instances: Instances) -> Finding:
    """Look for patients of two splits whose ids differ only in case, spaces, signs without width or leading zeros."""
    patients = instances.cohort.patients.select("subject", "subject_id").join(
        instances.frame.select("subject", "split").unique(), on="subject"
    )
    plain = pl.col("subject_id").str.normalize("NFKC").str.to_lowercase().str.replace_all(r"[^\p{L}\p{N}.,:/|_-]", "")
    key = plain.str.replace(r"\.0+$", "").str.replace(r"^(\D*)0+(\d)", "$1$2")
    alike = patients.with_columns(key.alias("key")).filter(
        (pl.col("subject").n_unique().over("key") > 1) & (pl.col("split").n_unique().over("key") > 1)
    )
    return finding(
        "similar ids in two splits",
        patients["subject"].n_unique(),
        alike["subject"].n_unique(),
        "patients whose id looks like one of another split: they may be one person",
        bad="warning",
    )
