"""``references``: an own path for each patient, corrected by the outcomes of similar patients in the bank.

    z_ik = u_ik + sum_r (gamma_r + delta_rk) m^r_ik,        m^r_ik = sum_j A^r_ij R_jk / (d^r_i + lambda_r)

u is the own path: one or several systems, cross-fitted by patient and stacked. R_j = y_j - p(u_j) is what the own path,
which did not see patient j, did not know about reference j. The equations are in :mod:`.reference_path`; this file
fits them to a problem, keeps them, and predicts newcomers: what is evaluated is predicted in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from patients_like_me.graph.people import PersonRule
from patients_like_me.model.settings import BackboneSettings
from patients_like_me.runs.record import Capabilities
from patients_like_me.runs.run import Run
from patients_like_me.systems.bags import BagSettings
from patients_like_me.systems.contract import Fitted, Growth, Joining, RunContext, System, SystemSettings
from patients_like_me.systems.keeping import read_fitted
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.tasks.instances import Instances

if TYPE_CHECKING:
    from patients_like_me.systems.reference_path.model import ReferenceModel

Whole = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: Several powers of one similarity at once, each with a gate of its own.
Powers = Annotated[tuple[Positive, ...], Field(min_length=1)]
Similarity = Literal[
    "diagnoses",
    "current codes",
    "all codes",
    "whole bag",
    "earlier drugs",
    "embedding",
    "shared diagnoses",
    "two hops",
    "leaves",
    "trained embedding",
]
Rehearsal = Literal["none", "later", "new_site"]
Control = Literal["none", "rewired", "shuffled", "no_cross_fitting", "no_references"]

#: What a table calls a run under a control, so that none is mistaken for the method.
CONTROLS: Mapping[Control, str] = {
    "none": "",
    "rewired": "references drawn at random",
    "shuffled": "outcomes of the bank shuffled",
    "no_cross_fitting": "without cross-fitting",
    "no_references": "without references",
}


_CODES: tuple[Similarity, ...] = ("diagnoses", "current codes", "all codes", "whole bag", "earlier drugs")
#: What ``plm tune`` tries: which similarities, how many references of each, and how sharp their weights are.
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "relations": (_CODES, (*_CODES, "shared diagnoses"), ("whole bag",), ("diagnoses", "all codes"), _CODES[:4]),
    "k": ((30, 100, 300), (30,), (100,), (300,), (10, 30, 100)),
    "powers": ((3.0, 1.0), (1.0,), (3.0,), (6.0, 3.0), (3.0, 1.0, (1.0, 3.0, 6.0))),
    "tau": (1, 2, 4, 8),
}


class ReferencesSettings(SystemSettings):
    """The own path, the relations to the bank, and what is tried on validation."""

    own_path: tuple[str, ...] = Field(
        ("linear", "boosting"), min_length=1, description="systems that are cross-fitted and stacked"
    )
    part_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="changes to the settings of a part of the own path, by its name"
    )
    bag: BagSettings = BagSettings(places=True)
    language_model: Literal["none", "frozen", "trained"] = Field(
        "none",
        description="own path and a relation also use the embedding of a language model; trained: through the own path",
    )
    embedder: BackboneSettings = Field(
        BackboneSettings(trainable_layers=0), description="the language model whose embeddings are used"
    )
    max_tokens: int = Field(256, ge=8, description="longest prompt in tokens")
    in_folds: Literal["fitted", "frozen"] = Field(
        "fitted", description="a trained language model is fitted in every fold, or left as it is there"
    )
    folds: int = Field(3, ge=2, description="folds by patient; each training patient is answered by a model without it")
    relations: tuple[Similarity, ...] = Field(
        _CODES,
        description="by which similarities references are found; with several sites two of them also within the site",
    )
    tau: int = Field(8, ge=1, description="fewest shared diagnoses of the relation 'shared diagnoses'")
    same_sex: bool = Field(False, description="references of the same sex only, in every relation")
    max_age_difference: int | None = Field(
        None, ge=0, description="references whose age differs by at most this many years, in every relation"
    )
    k: tuple[Whole, ...] = Field((30, 100, 300), min_length=1, description="each relation reads its strongest k")
    powers: tuple[Positive | Powers, ...] = Field(
        (3.0, 1.0),
        min_length=1,
        description=("sharpness of the weights; each is tried, validation chooses; several in brackets count together"),
    )
    gate_penalties: tuple[Positive, ...] = Field(
        (1.0, 0.3, 0.1, 0.03), min_length=1, description="penalties of the shared gates that are tried"
    )
    output_penalties: tuple[Positive | None, ...] = Field(
        (None, 3.0, 1.0), min_length=1, description="penalties of the gates per code that are tried; null: none"
    )
    may_stay_out: bool = Field(True, description="validation may leave the references out (all gates 0)")
    gate_instances: int = Field(
        10000, ge=100, description="most training instances on which gates are fitted; limits memory and time"
    )
    network: bool = Field(
        False, description="references also send what a linear network makes of their embeddings, behind its own gate"
    )
    rounds: int = Field(
        1, ge=1, le=5, description="rounds of own path and gates; from the second on u is fitted around the correction"
    )
    rehearsal: Rehearsal = Field(
        "none",
        description=(
            "whom gates are fitted for: a bank of the same time (none), one that later patients will join (later), or "
            "patients of another site (new_site)"
        ),
    )
    control: Control = Field("none", description="a control experiment instead of the method")

    @field_validator("own_path")
    @classmethod
    def _each_part_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("every system can be a part once")
        return names

    @model_validator(mode="after")
    def _controls_are_of_an_ordinary_fit(self) -> ReferencesSettings:
        if self.rehearsal != "none" and self.control not in ("none", "no_references"):
            raise ValueError(f"the control {self.control} belongs to gates that were not rehearsed")
        return self

    @model_validator(mode="after")
    def _learned_relations_have_an_own_path(self) -> ReferencesSettings:
        if "leaves" in self.relations and "boosting" not in self.own_path:
            raise ValueError("the relation 'leaves' reads the trees of 'boosting': add it to own_path")
        if "trained embedding" in self.relations and (
            "linear" not in self.own_path or self.language_model != "trained" or self.in_folds != "fitted"
        ):
            raise ValueError(
                "the relation 'trained embedding' needs 'linear' in own_path, language_model=trained and "
                "in_folds=fitted: in a fold it must come from layers that did not see the fold's labels"
            )
        return self

    @model_validator(mode="after")
    def _networks_and_rounds_have_what_they_need(self) -> ReferencesSettings:
        if self.network and (self.language_model == "none" or self.rehearsal != "none"):
            raise ValueError("a network over embeddings needs a language model, and gates that are not rehearsed")
        if self.rounds > 1 and (self.own_path != ("linear",) or self.rehearsal != "none"):
            raise ValueError(
                "in a second round the own path is fitted around the correction: that needs own_path linear alone, and "
                "gates that are not rehearsed"
            )
        return self

    @property
    def sharpness(self) -> tuple[tuple[float, ...], ...]:
        """The powers of each candidate: one, or several that are relations of their own."""
        return tuple(each if isinstance(each, tuple) else (each,) for each in self.powers)

    @property
    def person_rule(self) -> PersonRule:
        """Who may be a reference of whom by sex and age."""
        return PersonRule(self.same_sex, self.max_age_difference)

    def settings_of_part(self, system: System) -> Any:
        """Return the settings of a part: what it shares with this system, and the changes for it."""
        shared = ("bag", "language_model", "embedder", "max_tokens", "in_folds", "seed")
        values = {name: getattr(self, name) for name in shared if system.has_setting(name)}
        return system.settings_of(None, **{**values, **self.part_settings.get(system.name, {})})


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Cross-fit the own path, list the references, and choose the gates on validation."""
    from patients_like_me.systems.reference_path.fitting import fit_model

    model, account = fit_model(problem, run)
    return Fitted(run.settings, model.arrays(), model.facts(), account, state=model)


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Return z of instances, each compared with the bank and with nobody else."""
    return _model_of(fitted).logits(instances)


def predict_linked(fitted: Fitted, instances: Instances) -> tuple[Logits, npt.NDArray[np.int64]]:
    """Return the same with the number of references of every instance in the bank."""
    return _model_of(fitted).linked_logits(instances)


def join(fitted: Fitted, instances: Instances) -> Joining:
    """Describe labelled instances as references: their residuals are those of the own path, which never saw them."""
    model = _model_of(fitted)
    more, logits, linked = model.joining(instances)
    return Joining(more.kept_arrays(), logits, linked, model.bank.nearest(more.described))


def load(run: Run) -> Fitted:
    """Read a fitted model with all that was added to its bank; the indexes of the bank are built once."""
    fitted = read_fitted(SYSTEM, run)
    model = _model_of(fitted)
    if run.additions:
        model = model.with_additions(run.additions)
    return Fitted(fitted.settings, fitted.arrays, fitted.facts, state=model)


def _model_of(fitted: Fitted) -> ReferenceModel:
    from patients_like_me.systems.reference_path.model import ReferenceModel

    if isinstance(fitted.state, ReferenceModel):
        return fitted.state
    return ReferenceModel.of(fitted.arrays, fitted.facts, fitted.settings)


def _title(settings: ReferencesSettings) -> str:
    words = [CONTROLS[settings.control]] if settings.control != "none" else []
    if settings.person_rule.compares:
        words.append(f"of {settings.person_rule.in_words()}")
    if settings.rehearsal != "none":
        words.append(f"rehearsed for {'a later bank' if settings.rehearsal == 'later' else 'a new site'}")
    if settings.language_model != "none":
        words.append(f"{settings.language_model} language model")
    return f"references ({', '.join(words)})" if words else "references"


SYSTEM = System(
    name="references",
    description="an own path of stacked plain models, corrected by the outcomes of similar patients in the bank",
    settings=ReferencesSettings,
    preset_part="references",
    title=_title,
    capabilities=Capabilities(random=True, references=True, newcomers=True),
    fit=fit,
    predict=predict,
    load=load,
    growth=Growth(join),
    predict_linked=predict_linked,
    additive_references=_model_of,
    choices=CHOICES,
)
