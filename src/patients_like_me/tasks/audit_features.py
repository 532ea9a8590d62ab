"""Checks of the audit on what a single input tells about the label.

A label that one code, one field or one count gives away is not predicted but read: hardly a true sign is right for 99
of 100 instances of either kind, so from there on it is a leak. Below that these checks cannot tell a leak from a true
sign; they name the feature and the number, and the reader decides.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.codes.atc import all_atc3_codes
from patients_like_me.codes.drug_names import match_drug_names
from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import DEMOGRAPHICS, KINDS, PLACES
from patients_like_me.tasks.audit_findings import Finding, Verdict, cannot_be_checked, finding
from patients_like_me.tasks.audit_inputs import (
    FEWEST,
    FIELDS,
    Numbers,
    codes_behind,
    fields_of,
    outcome_named,
    presence,
    rows_looked_at,
    targets_of,
)
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.kinds import BINARY, MULTICLASS

#: From here on one feature alone tells the label nearly perfectly (area under the curve of its presence).
_NEARLY_PERFECT: Final = 0.97
#: From here on it is a leak.
_LEAK: Final = 0.99
#: From this share of its patients on, a code is one that only patients with the outcome have.
_ONLY: Final = 0.98
#: An outcome that more instances have is too frequent for such a share to mean much.
_FREQUENT: Final = 0.5
#: How probable such a share may be by chance for any feature and any outcome at all.
_CHANCE: Final = 1e-6
_LONGEST_TERM: Final = 200


def one_feature_alone(instances: Instances) -> tuple[Finding, Finding]:
    """Return what single features tell: the label of nearly all instances, or that of the few that have the feature."""
    rows = rows_looked_at(instances)
    targets = targets_of(instances)[rows]
    # Fewer instances have no outcome that could be told.
    columns, features = presence(instances, rows) if len(rows) >= 2 * FEWEST else (None, [])
    return (
        _tells_the_label(instances, rows, targets, columns, features),
        _only_with_the_outcome(instances, rows, targets, columns, features),
    )


def _tells_the_label(
    instances: Instances, rows: npt.NDArray[np.int64], targets: Numbers, columns: Any, features: list[str]
) -> Finding:
    """Predict the label from each feature alone: codes, their prefixes, words of their names, fields, counts."""
    name, meaning = "no feature alone tells the label", "features that alone predict the label nearly perfectly"
    with_both = np.flatnonzero(np.minimum(targets.sum(axis=0), len(rows) - targets.sum(axis=0)) >= FEWEST)
    if not len(with_both):
        return cannot_be_checked(name, meaning, f"no outcome has {FEWEST} instances with it and without it")
    # What each feature tells: how well, and which outcome.
    hits = {
        features[column]: (score, int(with_both[outcome]))
        for column, (score, outcome) in _told_by_presence(columns, targets[:, with_both]).items()
    }
    codes = list(hits)
    # A field that tells the label as a whole tells every outcome, and so the one with the most balanced numbers.
    balanced = int(with_both[np.argmin(np.abs(targets[:, with_both].mean(axis=0) - 0.5))])
    fields = {}
    for field, values in fields_of(instances, rows):
        if instances.task.kind.is_set:
            score, outcome = _told_by_one_value(values, targets[:, with_both])
            outcome = int(with_both[outcome])
        else:
            score, outcome = _told_by_values(values, instances.labels[rows], instances), balanced
        if score >= _NEARLY_PERFECT:
            hits[field], fields[field] = (score, outcome), values
    best = sorted(hits.items(), key=lambda hit: (-hit[1][0], "*" in hit[0], len(hit[0]), hit[0]))[:3]
    if best:
        is_one = {feature: feature in codes or instances.task.kind.is_set for feature in hits}
        shown = "; ".join(
            f"{printable(feature)}{_named(instances, 'tells', told) if is_one[feature] else ''}: {score:.3f}"
            for feature, (score, told) in best
        )
        outcome = best[0][1][1]
        telling = {feature for feature, (_, tells) in hits.items() if tells == outcome}
        honest, _ = presence(instances, rows, without=codes_behind(instances, telling.intersection(codes)))
        given = [values for field, values in fields.items() if field in telling]
        regression = _validated(columns, given, honest, targets[:, outcome], np.asarray(instances.splits)[rows])
        meaning += f" ({shown}; 1 is perfect, 0.5 is chance, {_LEAK} or more is a leak"
        if regression is not None:
            meaning += (
                f"; a logistic regression{_named(instances, 'for', outcome)} on training patients reaches an AUROC of "
                f"{regression[0]:.3f} on validation with them and {regression[1]:.3f} without their codes, in whatever "
                "prefix, word or visit"
            )
        meaning += ")"
    bad: Verdict = "leak" if best and best[0][1][0] >= _LEAK else "warning"
    return finding(name, len(features) + len(FIELDS), len(hits), meaning, bad=bad)


def _named(instances: Instances, word: str, outcome: int) -> str:
    named = outcome_named(instances, outcome)
    return f" {word} {named}" if named else ""


def _only_with_the_outcome(
    instances: Instances, rows: npt.NDArray[np.int64], targets: Numbers, columns: Any, features: list[str]
) -> Finding:
    """Look for features that nearly always come with an outcome which is much rarer in training.

    Such a code can be too rare to tell the label of most instances, and be the label itself for those that have it.
    Patients are counted, since the visits of one are alike; what chance explains is no finding.
    """
    from scipy.sparse import hstack
    from scipy.stats import binom

    name = "no code of one outcome alone"
    meaning = (
        f"codes and values of which at least {_ONLY:.0%} of the patients have one outcome, far more than in training"
    )
    if targets.shape[1] == 1:
        # Of yes and no either may be the rare one.
        targets = np.hstack([targets, 1 - targets])
    train = np.asarray(instances.splits)[rows] == "train"
    rates = targets[train].mean(axis=0) if train.any() else targets.mean(axis=0)
    rare = np.flatnonzero((targets.sum(axis=0) >= FEWEST) & (rates <= _FREQUENT) & (rates > 0))
    if not len(rare) or columns is None:
        return cannot_be_checked(name, meaning, f"no outcome of at most half of the instances has {FEWEST} of them")
    patients = instances.frame["subject"].to_numpy()[rows]
    values = {field: _common_values(given) for field, given in fields_of(instances, rows)}
    # A value may be anything a hospital writes: the field is named alone.
    features = features + [f"a value of '{field}'" for field, each in values.items() for _ in range(each.shape[1])]
    present = hstack([columns, *values.values()], format="csc")
    with_feature = np.diff(present.indptr)
    share = np.asarray(present.T @ targets[:, rare]) / np.maximum(with_feature, 1)[:, None]
    hits: dict[str, tuple[float, str]] = {}
    for column, outcome in np.argwhere((share >= _ONLY) & (with_feature >= FEWEST)[:, None]).tolist():
        having = present.indices[present.indptr[column] : present.indptr[column + 1]]
        people, of_row = np.unique(patients[having], return_inverse=True)
        happened = np.ones(len(people), dtype=bool)
        np.logical_and.at(happened, of_row, targets[having, rare[outcome]] > 0)
        number, rate = int(happened.sum()), float(rates[rare[outcome]])
        chance = float(binom.logsf(number - 1, len(people), rate)) + np.log(share.size)
        if len(people) >= FEWEST and number >= _ONLY * len(people) and chance < np.log(_CHANCE):
            # An exact share would count the few who have not.
            most = "all" if number == len(people) else f"at least {_ONLY:.0%}"
            told = outcome_named(instances, int(rare[outcome]))
            shown = f"{most} of {len(people):,} patients{f' have {told}' if told else ''}, {rate:.1%} in training"
            hits[features[column]] = min(hits.get(features[column], (chance, shown)), (chance, shown))
    best = sorted(hits.items(), key=lambda hit: (hit[1][0], len(hit[0]), hit[0]))[:3]
    if best:
        meaning += f" ({'; '.join(f'{printable(feature)}: {shown}' for feature, (_, shown) in best)})"
    return finding(name, len(features), len(hits), meaning, bad="warning")


def _validated(
    columns: Any, fields: list[pl.Series], honest: Any, target: Numbers, splits: npt.NDArray[np.str_]
) -> tuple[float, float] | None:
    """Return how well a small logistic regression does on validation with all columns and fields, and with the honest.

    It is fitted to the training split; None where a split has one outcome only.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    train, validation = np.flatnonzero(splits == "train"), np.flatnonzero(splits == "validation")
    if any(len(np.unique(target[some])) < 2 for some in (train, validation)):
        return None
    values = [csr_matrix(field.cast(pl.String).fill_null("").to_dummies().to_numpy().astype(float)) for field in fields]
    scores = []
    for inputs in (hstack([columns, *values], format="csr"), honest):
        if not inputs.shape[1]:
            # Nothing is left to tell anyone apart.
            scores.append(0.5)
            continue
        fitted = LogisticRegression(C=0.1, max_iter=200).fit(inputs[train], target[train])
        scores.append(float(roc_auc_score(target[validation], fitted.decision_function(inputs[validation]))))
    return scores[0], scores[1]


def _told_by_presence(matrix: Any, targets: Numbers) -> dict[int, tuple[float, int]]:
    """Return, by feature, the best area under the curve of its presence or absence, where nearly perfect, and of what.

    Of several outcomes it is the one that is told best.
    """
    positives = targets.sum(axis=0)
    negatives = len(targets) - positives
    with_feature = np.asarray(matrix.sum(axis=0)).ravel()
    true = matrix.T @ targets
    area = 0.5 + 0.5 * (true / positives - (with_feature[:, None] - true) / negatives)
    area = np.maximum(area, 1 - area)
    best = area.max(axis=1, initial=0.0)
    return {int(row): (float(best[row]), int(area[row].argmax())) for row in np.flatnonzero(best >= _NEARLY_PERFECT)}


def _told_by_one_value(values: pl.Series, targets: Numbers) -> tuple[float, int]:
    """Return how well one value of a field, against all others, tells one of several outcomes, and which."""
    return max(_told_by_presence(_common_values(values), targets).values(), default=(0.5, 0))


def _common_values(values: pl.Series) -> Any:
    """Return a sparse 0/1 matrix [instances, values] of the values that neither few instances have nor few lack."""
    from scipy.sparse import csr_matrix

    text = values.cast(pl.String).fill_null("").to_numpy().astype(str)
    _, place, counts = np.unique(text, return_inverse=True, return_counts=True)
    matrix = csr_matrix((np.ones(len(text), dtype=np.float32), (np.arange(len(text)), place)))
    return matrix[:, np.flatnonzero((counts >= FEWEST) & (counts <= len(text) - FEWEST))]


def _told_by_values(values: pl.Series, labels: npt.NDArray[np.int64], instances: Instances) -> float:
    """Return how well the value of a field tells the label: guesses learned on one half, scored on the other.

    The score is the mean share of each class that is guessed right, brought to the scale of an area under the curve.
    """
    if instances.task.kind not in (BINARY, MULTICLASS) or values.n_unique() < 2:
        return 0.5
    frame = pl.DataFrame({"value": values.cast(pl.String).fill_null(""), "label": labels})
    half = pl.int_range(pl.len()) % 2 == 0
    common = frame.filter(pl.len().over("label") >= FEWEST)
    classes = common["label"].n_unique()
    if classes < 2:
        return 0.5
    learned = (
        common.filter(half)
        .group_by("value", "label")
        .len()
        .sort(["len", "label"], descending=True)
        .unique("value", keep="first", maintain_order=True)
        .rename({"label": "guess"})
    )
    scored = common.filter(~half).join(learned, on="value", how="left")
    right = scored.group_by("label").agg((pl.col("guess") == pl.col("label")).fill_null(False).mean().alias("right"))
    share, chance = float(right["right"].mean() or 0.0), 1 / classes  # type: ignore[arg-type]
    return 0.5 + 0.5 * max(0.0, (share - chance) / (1 - chance))


def label_text_in_a_field(instances: Instances) -> Finding:
    """Look for the words of the label among codes, names and fields that are inputs."""
    terms = _label_terms(instances)
    name, meaning = "no label text in a field", "codes, names and fields that hold the words of the label"
    if not terms:
        return cannot_be_checked(name, meaning, "the labels are numbers or single letters")
    pattern = rf"\b({'|'.join(re.escape(term) for term in sorted(terms))})\b"
    texts = []
    for kind in KINDS:
        names = instances.cohort.names(kind)
        codes = instances.inputs(kind)["code"].unique().to_list()
        texts += [(f"{kind} {code}", f"{code} {names.get(code, '')}") for code in codes]
    visits = instances.cohort.visits
    for field in (*DEMOGRAPHICS, *PLACES):
        texts += [(field, value) for value in visits[field].drop_nulls().unique().to_list()]
    texts += [("sex", value) for value in instances.cohort.patients["sex"].drop_nulls().unique().to_list()]
    if not texts:
        return cannot_be_checked(name, meaning, "the instances have no texts")
    frame = pl.DataFrame(texts, schema={"place": pl.String, "text": pl.String}, orient="row")
    plain = pl.col("text").str.to_lowercase().str.replace_all(r"[^\p{L}\p{N}]+", " ")
    hits = frame.filter(plain.str.contains(pattern))
    meaning += f" ({', '.join(printable(place) for place in hits['place'].head(3).to_list())})" if hits.height else ""
    return finding(name, frame.height, hits.height, meaning, bad="warning")


def _label_terms(instances: Instances) -> set[str]:
    """Return the words by which a label could be written out, in lower case."""
    task = instances.task
    words = task.words
    given = [task.name, words.happened.removeprefix("were ").removeprefix("was "), *words.outcomes]
    if not task.kind.is_set:
        given += [value for value in task.classes if not re.fullmatch(r"[\d\s.,+-]*", value)]
    plain = {" ".join(re.findall(r"[^\W_]+", text.lower())) for text in given}
    # Who writes out a label does not write a page.
    plain = {text for text in plain if len(text) <= _LONGEST_TERM}
    return {text for text in plain if len(text) > 3 or (len(text) == 3 and " " not in text and not text.isdigit())}


def drugs_under_another_name(instances: Instances) -> Finding:
    """Look, where drugs are predicted, for drugs among the other codes of the current visit, by name or by ATC code.

    A code counts if its visits receive the class of drugs that it names far more often than other visits do.
    """
    name, meaning = "no drug under another name", "other codes of the current visit that name one of its drugs"
    if instances.task.label_codes != "medication":
        return Finding(name, "not applicable", 0, 0, "no drugs are predicted")
    vocabulary = {code: column for column, code in enumerate(instances.label_vocabulary)}
    rates = instances.labels.mean(axis=0) if len(instances) else np.zeros(len(vocabulary))
    looked_at, hits = 0, []
    for kind in KINDS:
        if kind == instances.task.label_codes:
            continue
        seen = instances.current_codes(kind).select("instance", "code").unique()
        names, codes = instances.cohort.names(kind), sorted(seen["code"].unique().to_list())
        looked_at += len(codes)
        of_code = {str(code): rows["instance"].to_numpy() for (code,), rows in seen.group_by("code")}
        matches = match_drug_names([re.sub(r"[|_:]+", " ", f"{names.get(code) or code}") for code in codes])
        for code, match in zip(codes, matches, strict=True):
            classes = {*match.atc3, *_atc3_in(code), *_atc3_in(names.get(code) or "")} & set(vocabulary)
            rows = of_code[code]
            for column in (vocabulary[atc3] for atc3 in classes):
                share = instances.labels[rows, column].mean()
                if len(rows) >= 5 and share >= 0.8 and share >= rates[column] + 0.25:
                    hits.append(f"{kind} {code}")
                    break
    meaning += f" ({', '.join(printable(hit) for hit in hits[:3])})" if hits else ""
    because = "no other code of the current visit is an input"
    return finding(name, looked_at, len(hits), meaning, bad="warning", because=because)


def _atc3_in(text: str) -> set[str]:
    """Return the ATC-3 codes that occur in a text, alone or as the beginning of a longer ATC code.

    >>> _atc3_in("given_c03ca01 iv")
    {'C03C'}
    """
    found = re.findall(r"(?<![A-Z0-9])([A-Z]\d\d[A-Z])(?:[A-Z](?:\d\d)?)?(?![A-Z0-9])", text.upper())
    return set(found) & set(all_atc3_codes())


def stay_in_a_number(instances: Instances) -> Finding:
    """Look for the length of the stay in the numbers of the inputs: fields, ages, counts, numbers inside codes."""
    name, meaning = "the stay in no number", "numbers of the inputs that equal the days or hours of the stay"
    visits = instances.cohort.visits.select(
        "visit", (pl.col("discharge_time") - pl.col("admission_time")).dt.total_seconds().alias("seconds")
    )
    rows = rows_looked_at(instances)
    stays = (
        instances.frame[rows.tolist()]
        .select("instance", "visit")
        .join(visits, on="visit", how="left", maintain_order="left")
    )
    seconds = stays["seconds"].cast(pl.Float64).to_numpy()
    if instances.task.predicted_at == "discharge":
        return Finding(name, "not applicable", 0, 0, "the stay is over when the prediction is made")
    if np.isfinite(seconds).sum() < FEWEST:
        return cannot_be_checked(name, meaning, "too few stays have both times")
    numbers = [(field, _numbers_in(values)) for field, values in fields_of(instances, rows)]
    for kind in KINDS:
        codes = instances.current_codes(kind)
        distinct = codes.select(pl.col("code").unique())
        valued = distinct.with_columns(_numbers_in(distinct["code"]).alias("value")).drop_nulls()
        largest = codes.join(valued, on="code").group_by("instance").agg(pl.col("value").max())
        joined = stays.join(largest, on="instance", how="left", maintain_order="left")
        numbers.append((f"numbers in {kind} codes", joined["value"]))
    hits = [field for field, values in numbers if _equals_the_stay(values.to_numpy(), seconds)]
    meaning += f" ({', '.join(hits[:3])})" if hits else ""
    return finding(name, len(numbers), len(hits), meaning, bad="warning")


def _numbers_in(values: pl.Series) -> pl.Series:
    if values.dtype != pl.String:
        return values.cast(pl.Float64)
    return values.str.extract(r"(\d+(?:\.\d+)?)").cast(pl.Float64, strict=False)


def _equals_the_stay(values: npt.NDArray[Any], seconds: Numbers) -> bool:
    """Tell whether numbers equal stays in days or hours, or rise and fall with them, where both are known."""
    known = np.isfinite(values.astype(np.float64)) & np.isfinite(seconds)
    if known.sum() < FEWEST or len(np.unique(values[known])) < 3:
        return False
    number, stay = values[known].astype(np.float64), seconds[known]
    if len(np.unique(stay)) < 3:
        return False
    for unit in (86_400, 3_600):
        exact = stay / unit
        equal = (np.abs(number - np.floor(exact)) < 0.01) | (np.abs(number - exact) < 0.51)
        shuffled = np.random.default_rng(0).permutation(exact)
        chance = (np.abs(number - shuffled) < 0.51).mean()
        if equal.mean() >= 0.8 and equal.mean() >= chance + 0.4:
            return True
    ranks = (number.argsort().argsort(), stay.argsort().argsort())
    return bool(abs(np.corrcoef(*ranks)[0, 1]) >= 0.95)
