"""GRASP: what a patient's record leaves out, borrowed from similar patients (Zhang et al. 2021, AAAI).

With h the last state of a GRU over visit vectors and C the centres of K clusters of such states:

    e = relu(h C^T),   one cluster per patient: Gumbel-softmax(e), hard, tau 1
    U = relu(A^ relu(A^ C W1 + b1) W2 + b2)                  over the graph of nearest centres; u = the chosen row of U
    a = sigmoid(w1 . u),  b = sigmoid(w2 . h),   z = a / (a + b) u + b / (a + b) h
    logits = head(batch norm(z))

Deviations, all for predictions that do not depend on the batch they are made in. The centres of all *training*
patients are kept (``refresh_centres``, before the first epoch and after each one) and used for evaluation, which
takes the most similar cluster without noise. In training the k-means of a batch starts from the kept centres, so
clusters keep their numbers and a batch smaller than K need not be skipped. Readings: A^ is A + I with rows divided by
their sum; it is the identity until the first epoch is over.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import torch
from pydantic import Field
from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import FEW, is_small
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import ExplanationTable, Fitted, SelfExplanation, System
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.features import VisitFeatures
from patients_like_me.systems.self_explaining import Reading
from patients_like_me.systems.visit_layers import (
    CodeSetEmbedding,
    Head,
    Sizes,
    VisitGru,
    Visits,
    at_last_visit,
)
from patients_like_me.systems.visit_network import Facts, VisitNetwork, features_of, sizes_of, states_in_batches
from patients_like_me.tasks.instances import Instances, Rows


class GraspSettings(EpochSettings):
    """GRASP's sizes and training, as in its public code, with a GRU as the encoder."""

    embedding: int = Field(128, ge=1, description="width of a code's vector")
    hidden: int = Field(128, ge=1, description="width of the GRU over visits and of the clusters' centres")
    clusters: int = Field(12, ge=2, description="number K of clusters of similar patients")
    neighbours: int = Field(20, ge=1, description="nearest centres that a centre is joined to, K - 1 at most")
    temperature: float = Field(1.0, gt=0, description="tau of the Gumbel-softmax that chooses a cluster")
    rounds: int = Field(10, ge=1, description="most rounds of k-means on a training batch")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of the record's state dropped in training")
    gradient_clip: float | None = Field(20.0, gt=0, description="largest norm of the gradient; None: any")
    epochs: int = Field(100, ge=1, description="most epochs")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    batch_size: int = Field(256, ge=1, description="instances per step")
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate of the optimizer")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")


@dataclass(frozen=True)
class ClusterChoice:
    """The cluster of similar patients that each instance was given, and how much it counts."""

    cluster: Tensor  #: number of the cluster, [B]
    share: Tensor  #: weight a / (a + b) of the cluster beside the patient's own record, [B]


class Grasp(nn.Module):
    """A GRU's state, gated with the representation of its cluster."""

    centres: Tensor
    graph: Tensor
    refreshes: Tensor

    def __init__(self, settings: GraspSettings, sizes: Sizes) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = CodeSetEmbedding(sizes, settings.embedding)
        self.gru = VisitGru(settings.embedding, settings.hidden)
        self.dropout = nn.Dropout(settings.dropout)
        self.first_layer = nn.Linear(settings.hidden, settings.hidden)
        self.second_layer = nn.Linear(settings.hidden, settings.hidden)
        self.cluster_gate = nn.Linear(settings.hidden, 1)
        self.record_gate = nn.Linear(settings.hidden, 1)
        self.norm = nn.BatchNorm1d(settings.hidden)
        self.head = Head(settings.hidden, sizes)
        self.register_buffer("centres", torch.zeros(settings.clusters, settings.hidden))
        self.register_buffer("graph", torch.eye(settings.clusters))
        self.register_buffer("refreshes", torch.zeros((), dtype=torch.long))

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]."""
        record = self.dropout(self.states(visits))
        gated, _ = self.gated(record, *self.similar(record))
        logits: Tensor = self.head(self._normed(gated), visits.demographics)
        return logits

    def states(self, visits: Visits) -> Tensor:
        """Return h, what the record alone says, [B, hidden]."""
        return at_last_visit(self.gru(self.embedding(visits.codes), visits.visit_mask), visits.visit_mask)

    def similar(self, record: Tensor) -> tuple[Tensor, Tensor]:
        """Return which cluster is chosen, one-hot [B, K], and what each cluster stands for, U [K, hidden]."""
        if not self.refreshes:
            raise PlmError(
                "GRASP has no clusters yet", remedy="call refresh_centres with the training instances' states"
            )
        centres = self.centres
        if self.training:
            centres = k_means(record.detach(), centres, self.settings.rounds)
        scores = torch.relu(record @ centres.T)
        if self.training:
            choice = nn.functional.gumbel_softmax(scores, tau=self.settings.temperature, hard=True)
        else:
            choice = nn.functional.one_hot(scores.argmax(1), self.settings.clusters).to(scores.dtype)
        spread = torch.relu(self.graph @ self.first_layer.forward(centres))
        return choice, torch.relu(self.graph @ self.second_layer.forward(spread))

    def gated(self, record: Tensor, choice: Tensor, clusters: Tensor) -> tuple[Tensor, Tensor]:
        """Return z [B, hidden] and the cluster's share in it, [B]."""
        borrowed = choice @ clusters
        a, b = torch.sigmoid(self.cluster_gate(borrowed)), torch.sigmoid(self.record_gate(record))
        share = a / (a + b)
        return share * borrowed + (1 - share) * record, share.squeeze(1)

    @torch.no_grad()
    def refresh_centres(self, training_states: Tensor, seed: int, rounds: int = 100) -> None:
        """Fit the kept centres and their graph on the states of training instances alone.

        Call it before the first epoch, when the graph stays the identity, and after each epoch, before validation.
        """
        if len(training_states) < self.settings.clusters:
            raise PlmError(
                f"GRASP cannot make {self.settings.clusters} clusters of {len(training_states)} training instances",
                remedy="lower the setting clusters",
            )
        is_first = not self.refreshes
        start = spread_points(training_states, self.settings.clusters, seed) if is_first else self.centres
        self.centres.copy_(k_means(training_states, start, rounds))
        if not is_first:
            self.graph.copy_(centre_graph(self.centres, self.settings.neighbours))
        self.refreshes += 1

    @torch.no_grad()
    def choice(self, visits: Visits) -> ClusterChoice:
        """Return the cluster of each instance and its share in the prediction; for evaluation mode."""
        record = self.states(visits)
        chosen, clusters = self.similar(record)
        _, share = self.gated(record, chosen, clusters)
        return ClusterChoice(chosen.argmax(1), share)

    def _normed(self, gated: Tensor) -> Tensor:
        if self.training and len(gated) > 1:
            normed: Tensor = self.norm(gated)
            return normed
        # A single instance has no variance; a last batch of one takes the running statistics.
        norm = self.norm
        return nn.functional.batch_norm(
            gated, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False, eps=norm.eps
        )


def spread_points(points: Tensor, count: int, seed: int) -> Tensor:
    """Choose first centres far from each other, as k-means++ does: by squared distance to the nearest chosen one.

    >>> chosen = spread_points(torch.tensor([[0.0], [0.1], [9.0]]), count=2, seed=1)
    >>> bool(chosen.max() == 9)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = [int(torch.randint(len(points), (), generator=generator))]
    for _ in range(count - 1):
        nearest = torch.cdist(points, points[chosen]).amin(1).square().cpu()
        # Where all points coincide with chosen ones, any will do.
        weights = nearest if nearest.sum() > 0 else torch.ones_like(nearest)
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
    return points[chosen]


def k_means(points: Tensor, start: Tensor, rounds: int) -> Tensor:
    """Move centres to the mean of their nearest points until nothing changes; a centre without points stays.

    >>> k_means(torch.tensor([[0.0], [2.0], [9.0]]), start=torch.tensor([[1.5], [8.0], [99.0]]), rounds=5).flatten()
    tensor([ 1.,  9., 99.])
    """
    centres, before = start, None
    for _ in range(rounds):
        nearest = torch.cdist(points, centres).argmin(1)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        counts = torch.bincount(nearest, minlength=len(centres)).unsqueeze(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres


def centre_graph(centres: Tensor, neighbours: int) -> Tensor:
    """Join each centre to its nearest ones and itself; rows sum to 1.

    >>> centre_graph(torch.tensor([[0.0], [1.0], [5.0]]), neighbours=1)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.5000, 0.5000]])
    """
    count = len(centres)
    distances = torch.cdist(centres, centres).fill_diagonal_(float("inf"))
    nearest = distances.topk(min(neighbours, count - 1), largest=False).indices
    joined = torch.eye(count, device=centres.device).scatter(1, nearest, 1.0)
    return joined / joined.sum(1, keepdim=True)


def nearest_in_cluster(
    state: Tensor, cluster: int, training_states: Tensor, training_clusters: Tensor, count: int
) -> Tensor:
    """Return the rows of the training instances of a cluster that are nearest to a state, nearest first.

    >>> states, clusters = torch.tensor([[0.0], [4.0], [1.0]]), torch.tensor([0, 0, 1])
    >>> nearest_in_cluster(torch.tensor([3.0]), 0, states, clusters, count=5)
    tensor([1, 0])
    """
    members = (training_clusters == cluster).nonzero().squeeze(1)
    distances = torch.cdist(state.unsqueeze(0), training_states[members]).squeeze(0)
    return members[distances.argsort(stable=True)[:count]]


def build(settings: GraspSettings, facts: Facts) -> Grasp:
    """Build the network for the data that the facts describe."""
    return Grasp(settings, sizes_of(facts))


def refresh(network: Grasp, features: VisitFeatures, train: Rows, seed: int) -> None:
    """Fit the clusters again, on the training instances alone."""
    network.refresh_centres(states_in_batches(network.states, features, train), seed)


#: Similar training patients that are shown.
MOST_SIMILAR = 10


def explain(fitted: Fitted, instances: Instances, row: int, output: int | None) -> SelfExplanation:
    """Return the cluster of similar patients, its share in the prediction, and its nearest training patients."""
    del output
    reading = Reading.of(NETWORK, fitted, instances, row)
    network, train = reading.network, instances.rows_of("train")
    choice = network.choice(reading.batch)
    cluster, share = int(choice.cluster[0]), float(choice.share[0])
    features = features_of(fitted, instances)
    states = states_in_batches(network.states, features, train)
    clusters = states_in_batches(lambda visits: network.choice(visits).cluster, features, train)
    members = train[(clusters == cluster).numpy()]
    with torch.no_grad():
        own = network.states(reading.batch)[0]
    nearest = nearest_in_cluster(own, cluster, states, clusters, MOST_SIMILAR).tolist()
    rows = tuple(
        (f"R{at}", float((own - states[place]).norm()), "yes" if instances.labels[train[place]] else "no")
        for at, place in enumerate(nearest, start=1)
    )
    about = reading.output_label(0)
    return SelfExplanation(
        title="The cluster of similar patients",
        sentence=f"GRASP put this patient into cluster {cluster + 1} of {len(network.centres)}, with "
        f"{cluster_in_words(instances, members, about)} What the cluster stands for has a share of {100 * share:.1f} % "
        "in the prediction; the rest is the patient's own record.",
        tables=(
            reading.prediction(),
            ExplanationTable("Nearest training patients of the cluster", ("patient", "distance", about), rows),
        ),
    )


def cluster_in_words(instances: Instances, members: Rows, about: str) -> str:
    """Say how many training instances a cluster has and how often the outcome came; nothing tells a count under 11."""
    subjects, happened = instances.frame[members.tolist()]["subject"], instances.labels[members] > 0
    if not len(members) or is_small(subjects.n_unique()):
        return f"{FEW} training patients."
    sides = (subjects.filter(pl.Series(side)).n_unique() for side in (happened, ~happened))
    rate = "" if any(map(is_small, sides)) else f" {100 * float(happened.mean()):.1f} % of them: {about}."
    return f"{len(members):,} training instances.{rate}"


NETWORK = VisitNetwork(build, refresh=refresh)
SYSTEM = System(
    name="grasp",
    description="a GRU over visits that borrows from the cluster of similar patients",
    settings=GraspSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    title=lambda _: "GRASP",
    tasks=("readmission",),
    fit=NETWORK.fit,
    predict=NETWORK.predict,
    explain=explain,
)
