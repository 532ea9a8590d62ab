r"""MICRON (Yang et al., IJCAI 2021): the change of the medication from the change of the patient's state.

.. math:: h_t = W [\textstyle\sum d_t; \sum p_t] + c, \qquad r_t = P(h_t - h_{t-1}), \qquad
          s_1 = P(h_1), \quad s_t = s_{t-1} + r_t

with the prescription network P (two layers). The probabilities are sigma(s_t). Training looks at the last two visits:
both are predicted by P, and sigma(P(h_t)) has to agree with sigma(P(h_{t-1}) + r_t).

The public code skips first visits, and with them most patients: here a first visit is predicted and trained by P(h_1).
Its adaptive weighting never becomes active, so the four weights are constant. Its evaluation writes into one array for
all visits, which starts as what was really given at the first visit; here every visit has a set of its own, the first
from P(h_1).

Scores of a run are those of the probabilities, as for every system; how well the updated sets do is in the run's notes.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import ExplanationTable, Fitted, SelfExplanation, System
from patients_like_me.systems.drug_knowledge import INTERACTIONS, interactions_of, known_drugs, label_columns
from patients_like_me.systems.drug_safety import KnownInteractions, prediction_loss, variant_name
from patients_like_me.systems.drug_visits import CodeSums, OfDemographics, medication_sets, streams_of
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.features import VisitFeatures, Vocabularies
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.self_explaining import Reading, interaction_tables
from patients_like_me.systems.visit_layers import Sizes, Visits, at_last_visit, earlier_visits
from patients_like_me.systems.visit_network import (
    Facts,
    Knowledge,
    VisitNetwork,
    own_loss,
    sizes_of,
    states_in_batches,
)
from patients_like_me.tasks.forms import Scored, jaccard_per_instance_form, value_of
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.kinds import PAPER_THRESHOLD

KNOWLEDGE: Final = ("interactions",)


class MICRONSettings(EpochSettings):
    """MICRON's settings; the defaults are the paper's."""

    width: int = Field(64, ge=1, description="values per code and of the patient's state")
    hidden: int = Field(256, ge=1, description="values inside the prescription network")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of the code embeddings' values dropped in training")
    current_share: float = Field(0.75, ge=0, le=1, description="share of the current visit's loss; the rest: the last")
    prediction_weight: float = Field(0.25, ge=0, description="weight of the binary cross-entropy")
    margin_weight: float = Field(0.0125, ge=0, description="weight of the multilabel margin loss: 0.25 of 0.05")
    reconstruction_weight: float = Field(0.25, ge=0, description="weight of the agreement of state and change")
    interaction_weight: float = Field(0.25, ge=0, description="weight of the interactions above the target")
    target_rate: float = Field(0.08, ge=0, le=1, description="interaction rate above which a set is corrected")
    add_above: float = Field(0.8, gt=0, lt=1, description="probability from which a drug is added to the set before")
    remove_below: float = Field(0.2, gt=0, lt=1, description="probability below which a drug is removed from it")
    without: tuple[Literal["interactions"], ...] = Field(
        (), description="knowledge to do without; the name of the run says so"
    )
    optimizer: OptimizerName = Field("rmsprop", description="the rule that changes the weights")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate; the paper: 2e-4 for steps of one patient")
    weight_decay: float = Field(1e-5, ge=0, le=100, description="share of the weights taken away per step")
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    batch_size: int = Field(32, ge=1, description="training instances per step")


class MICRON(nn.Module):
    """The network. ``columns`` is ``drug_visits.medication_columns``, for the labels of the visit before."""

    columns: Tensor

    def __init__(
        self,
        sizes: Sizes,
        settings: MICRONSettings,
        *,
        columns: npt.NDArray[np.int64],
        interactions: KnownInteractions | None,
    ) -> None:
        super().__init__()
        self.settings, self.outputs, self.interactions = settings, sizes.outputs, interactions
        self.register_buffer("columns", torch.as_tensor(columns))
        self.streams = streams_of(sizes)
        self.sums = nn.ModuleDict(
            {kind: CodeSums(sizes.codes[kind], settings.width, settings.dropout) for kind in self.streams}
        )
        self.health = nn.Linear(settings.width * len(self.streams), settings.width)
        self.person = OfDemographics(sizes)
        self.prescription = nn.Sequential(
            nn.Linear(settings.width, settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, sizes.outputs)
        )

    def health_states(self, visits: Visits) -> Tensor:
        """Return h [B, V, width]."""
        states: Tensor = self.health(torch.cat([self.sums[kind](visits.codes[kind]) for kind in self.streams], dim=2))
        return states

    def running_logits(self, visits: Visits) -> Tensor:
        """Return s [B, V, outputs]; padding repeats the last real visit's."""
        states = self.health_states(visits)
        changes = self.prescription(states[:, 1:] - states[:, :-1]) * visits.visit_mask[:, 1:, None]
        first = self.person(self.prescription(states[:, 0]), visits)[:, None]
        return torch.cat([first, changes], dim=1).cumsum(dim=1)

    def forward(self, visits: Visits) -> Tensor:
        """Return the running logits [B, outputs] at the current visit."""
        return self.running_logits(visits)[:, -1]

    @torch.no_grad()
    def sets(self, visits: Visits) -> Tensor:
        """Return the recommended sets [B, V, outputs] (bool) as the paper updates them.

        The first visit's set are the drugs with probability 0.5 or more; each later visit adds and removes.
        """
        probabilities = torch.sigmoid(self.running_logits(visits))
        sets = [probabilities[:, 0] >= 0.5]
        for now in probabilities[:, 1:].unbind(dim=1):
            sets.append((sets[-1] | (now >= self.settings.add_above)) & (now >= self.settings.remove_below))
        return torch.stack(sets, dim=1)

    @torch.no_grad()
    def changes(self, visits: Visits) -> tuple[Tensor, Tensor]:
        """Return the drugs added and removed [B, outputs] (bool) at the current visit; at a first visit all are new."""
        sets = self.sets(visits)
        before = torch.cat([torch.zeros_like(sets[:, :1]), sets[:, :-1]], dim=1)
        now, last = (at_last_visit(found, visits.visit_mask) for found in (sets, before))
        return now & ~last, last & ~now

    def loss(self, visits: Visits, targets: Tensor, epoch: int = 0) -> Tensor:
        """Return the loss [B]. A first visit has no visit before: its own prediction has the whole weight.

        The labels of the visit before are its medications, which are an input of the instance.
        """
        del epoch
        settings, codes, visit_mask = self.settings, visits.codes, visits.visit_mask
        states = self.health_states(visits)
        rows, place_before = torch.arange(len(states), device=states.device), (visit_mask.sum(dim=1) - 2).clamp(min=0)
        now, before = at_last_visit(states, visit_mask), states[rows, place_before]
        residual = self.prescription(now - before)
        logits, logits_before = (self.person(self.prescription(state), visits) for state in (now, before))
        history = earlier_visits(visit_mask).any(dim=1)
        loss = self._prediction(logits, targets)
        if "medication" in codes:
            share = torch.where(history, settings.current_share, 1.0)
            taken = medication_sets(codes["medication"], self.columns, self.outputs)[rows, place_before]
            loss = share * loss + (1 - share) * self._prediction(logits_before, taken)
        probabilities = torch.sigmoid(logits)
        gap = (probabilities - torch.sigmoid(logits_before + residual)).square().mean(dim=1)
        loss = loss + settings.reconstruction_weight * gap * history
        if self.interactions is not None:
            above = self.interactions.rates(probabilities >= 0.5) > settings.target_rate
            pairs = self.interactions.expected_pairs(probabilities) / self.outputs
            loss = loss + settings.interaction_weight * pairs * above
        return loss

    def _prediction(self, logits: Tensor, targets: Tensor) -> Tensor:
        settings = self.settings
        return prediction_loss(
            logits, targets, entropy_weight=settings.prediction_weight, margin_weight=settings.margin_weight
        )


def build(settings: MICRONSettings, facts: Facts) -> MICRON:
    """Build the network for the data and the knowledge that the facts describe."""
    return MICRON(
        sizes_of(facts),
        settings,
        columns=label_columns(facts),
        interactions=interactions_of(facts),
    )


def knowledge(problem: Problem, settings: MICRONSettings, vocabularies: Vocabularies) -> Knowledge:
    """Return what is known about the drugs."""
    return known_drugs(problem, settings, vocabularies)


def remarks(network: MICRON, features: VisitFeatures, problem: Problem) -> tuple[str, ...]:
    """Say how well the updated sets agree with validation, beside the sets that scores are of."""
    rows, settings = problem.validation, network.settings
    labels = problem.with_validation_labels().labels[rows]

    def jaccard(chosen: Tensor) -> str:
        scored = Scored(problem.kind, labels, chosen.double().numpy(), np.arange(len(rows)))
        found = value_of(jaccard_per_instance_form(scored, 0.5), scored)
        return "not available" if found is None else f"{found:.3f}"

    def updated(visits: Visits) -> Tensor:
        return at_last_visit(network.sets(visits), visits.visit_mask)

    sets = states_in_batches(updated, features, rows)
    probable = torch.sigmoid(states_in_batches(network, features, rows)) >= PAPER_THRESHOLD
    sentence = (
        "validation: the sets that are updated from visit to visit "
        f"(added from {settings.add_above:g} on, removed below {settings.remove_below:g}) have a Jaccard of "
        f"{jaccard(sets)}, those from {PAPER_THRESHOLD:g} on, as scored for every system, {jaccard(probable)}"
    )
    return (sentence,)


def explain(fitted: Fitted, instances: Instances, row: int, output: int | None) -> SelfExplanation:
    """Return the drugs that the current visit adds and removes, and the interactions within the set."""
    del output
    reading = Reading.of(NETWORK, fitted, instances, row)
    added, removed = (found[0].nonzero().flatten().tolist() for found in reading.network.changes(reading.batch))
    rows = tuple(
        (change, reading.drug(at), reading.probabilities[at])
        for change, found in (("added", added), ("removed", removed))
        for at in found
    )
    settings: MICRONSettings = fitted.settings
    rule = (
        "There is no visit before: every drug with a probability of 0.5 or more is added."
        if reading.visits == 1
        else f"MICRON updates the set of the visit before: a drug is added from a probability of "
        f"{settings.add_above:g} on and removed below {settings.remove_below:g}."
    )
    # What is shown is recalibrated, the network's own rule is not.
    own = " This rule reads the probabilities before their recalibration." if reading.calibration is not None else ""
    return SelfExplanation(
        title="The change of the medication",
        sentence=rule + own,
        tables=(
            reading.prediction(),
            ExplanationTable("Added and removed drugs", ("change", "drug", "probability"), rows),
            *interaction_tables(reading),
        ),
    )


NEEDS = {"atc3_interactions": INTERACTIONS}
# Its constants start at 0: P is applied to every change, so that the training rates would count once per visit.
NETWORK = VisitNetwork(build, loss=own_loss, knowledge=knowledge, remarks=remarks)
SYSTEM = System(
    name="micron",
    description="the change of the medication from the change of the state between visits",
    settings=MICRONSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    knowledge=tuple(NEEDS),
    optional_knowledge=NEEDS,
    tasks=("drug_recommendation",),
    title=lambda settings: variant_name("MICRON", KNOWLEDGE, settings.without),
    fit=NETWORK.fit,
    predict=NETWORK.predict,
    explain=explain,
)
