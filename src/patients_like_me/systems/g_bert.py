r"""G-BERT (Shang et al., IJCAI 2019): codes embedded through their ontology, each visit read by a transformer.

Ontology: codes get their vectors through their trees (:mod:`patients_like_me.systems.ontology_attention`).

Visit: a transformer over [CLS] and the set of one kind's codes, without positions; v is the state of [CLS].

.. math:: \mathrm{logits} = \mathrm{MLP}\big[\mathrm{mean}_{s<t} v^k_s\ \text{of every kind}\ k;\;
          v^k_t\ \text{of the kinds that the current visit shows}\big]

Pre-training: from masked codes of one visit, each kind predicts its own set of codes and those of the other kinds.

The public code interleaves diagnoses and medications in its rows but splits them in halves, so that a patient with
three visits predicts the second medication set from itself; here the formula is followed. Its attention hides [CLS]
from itself and its pre-training gives all kinds one type; here [CLS] is visible and kinds have their types. Added to
the paper: procedures, and a learned vector in place of the mean where there is no earlier visit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.code_trees import TABLES, known_trees, tree_word
from patients_like_me.systems.contract import System
from patients_like_me.systems.drug_safety import variant_name
from patients_like_me.systems.drug_visits import OfDemographics
from patients_like_me.systems.epochs import EpochSettings, OptimizerName
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.ontology_attention import OntologyEmbedding, ancestor_numbers
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.set_block import Packing, SetBlock
from patients_like_me.systems.visit_layers import Sizes, Visits, at_last_visit, earlier_visits
from patients_like_me.systems.visit_network import (
    Facts,
    Knowledge,
    VisitNetwork,
    cross_entropy,
    sizes_of,
    vocabularies_of,
)
from patients_like_me.tasks.kinds import LabelKind

KINDS: Final = ("diagnosis", "procedure", "medication")
KNOWLEDGE: Final = tuple(f"{kind}-hierarchy" for kind in KINDS)


class GBERTSettings(EpochSettings):
    """G-BERT's settings; the defaults are the paper's."""

    width: int = Field(300, ge=1, description="values per code and visit")
    graph_heads: int = Field(4, ge=1, description="heads of the attention in the ontology")
    slope: float = Field(0.2, ge=0, description="slope of the leaky ReLU in the ontology's attention")
    layers: int = Field(2, ge=1, description="blocks of the transformer")
    heads: int = Field(4, ge=1, description="heads of the transformer's attention")
    feed_forward: int = Field(300, ge=1, description="values inside the transformer's feed-forward networks")
    dropout: float = Field(0.4, ge=0, lt=1, description="share of hidden values dropped in training")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="share of attention weights dropped in training")
    mask_rate: float = Field(0.15, gt=0, lt=1, description="share of codes hidden in pre-training")
    rounds: int = Field(15, ge=0, description="rounds of pre-training and fine-tuning; 0: fine-tuning only")
    round_epochs: int = Field(5, ge=1, description="epochs of pre-training, and of fine-tuning, in a round")
    without: tuple[Literal["diagnosis-hierarchy", "procedure-hierarchy", "medication-hierarchy"], ...] = Field(
        (), description="hierarchies to do without; the name of the run says so"
    )
    epochs: int = Field(150, ge=1, description="most epochs, of pre-training and fine-tuning together")
    patience: int = Field(10, ge=1, description="epochs of fine-tuning without a better score before stopping")
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(5e-4, gt=0, le=100, description="learning rate of the optimizer")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")
    batch_size: int = Field(32, ge=1, description="training instances per step")

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> GBERTSettings:
        for name, heads in (("graph_heads", self.graph_heads), ("heads", self.heads)):
            if self.width % heads:
                raise ValueError(f"width {self.width} is not a multiple of {name} {heads}")
        return self


def phase_of_epoch(epoch: int, settings: GBERTSettings) -> Literal["pre-training", "fine-tuning"]:
    """Return what an epoch (from 0) does; after the last round only fine-tuning is left.

    >>> [phase_of_epoch(epoch, GBERTSettings()) for epoch in (0, 4, 5, 9, 10, 1000)]
    ['pre-training', 'pre-training', 'fine-tuning', 'fine-tuning', 'pre-training', 'fine-tuning']
    """
    started, place = divmod(epoch, 2 * settings.round_epochs)
    return "pre-training" if started < settings.rounds and place < settings.round_epochs else "fine-tuning"


def pretraining_visits(
    visits: Visits,
    *,
    labels: Tensor | None = None,
    medication_of_label: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the codes [N, C] of the current visit of every training instance, single visits included.

    Each visit is the current one of one instance, so none comes twice. Where the medications are the label (0/1
    [N, M]), they are taken from it; ``medication_of_label`` [M] has their numbers, 0 for one that is never an input.
    """
    current = {kind: at_last_visit(found, visits.visit_mask) for kind, found in visits.codes.items()}
    if labels is not None and medication_of_label is not None:
        chosen = torch.where(labels > 0, medication_of_label, 0)
        current["medication"] = chosen.sort(dim=1, descending=True).values[:, : int((chosen > 0).sum(dim=1).max())]
    return current


class GBERT(nn.Module):
    """The network. ``ancestors`` has [codes, depth] per kind, the nearest first and 0 for none: ``ancestor_numbers``.

    A kind without a tree gets ``np.zeros((codes, 0), dtype=int)``, and the system another name. ``current`` are the
    kinds that the task shows of the current visit: for drug recommendation those without medications, which
    pre-training takes from the labels by ``medication_of_label``.
    """

    medication_of_label: Tensor | None

    def __init__(
        self,
        sizes: Sizes,
        settings: GBERTSettings,
        *,
        ancestors: Mapping[str, npt.NDArray[np.int64]],
        current: Collection[str] = KINDS,
        medication_of_label: npt.NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__()
        width = settings.width
        self.settings, self.sizes = settings, sizes
        numbers = None if medication_of_label is None else torch.as_tensor(medication_of_label)
        self.register_buffer("medication_of_label", numbers, persistent=False)
        self.kinds = tuple(kind for kind in KINDS if sizes.codes.get(kind, 0))
        self.current = tuple(kind for kind in self.kinds if kind in current)
        self.blocks = nn.ModuleList(SetBlock(settings) for _ in range(settings.layers))
        self.mapping = nn.ModuleDict({kind: nn.Sequential(nn.Linear(width, width), nn.ReLU()) for kind in self.kinds})
        self.head = nn.Sequential(
            nn.Linear((len(self.kinds) + len(self.current)) * width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, sizes.outputs),
        )
        self.pretraining = nn.ModuleDict(
            {
                f"{source}_to_{target}": nn.Sequential(
                    nn.Linear(width, width), nn.ReLU(), nn.Linear(width, sizes.codes[target])
                )
                for source in self.kinds
                for target in self.kinds
            }
        )
        self.person = OfDemographics(sizes)
        self.apply(_small_first_weights)
        # After the line above, which must not touch the first weights of the ontologies.
        self.first_token, self.hidden_token = (nn.Parameter(0.02 * torch.randn(width)) for _ in range(2))
        self.types, self.no_history = (
            nn.ParameterDict({kind: nn.Parameter(0.02 * torch.randn(width)) for kind in self.kinds}) for _ in range(2)
        )
        shape = (width, settings.graph_heads, settings.slope)
        self.ontologies = nn.ModuleDict({kind: OntologyEmbedding(ancestors[kind], *shape) for kind in self.kinds})

    def encode(self, codes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return v [N, width] of visits' codes [N, C], by kind; the number behind a kind's last code is the mask.

        All kinds pass the blocks together, and padding is left out.
        """
        tables, numbers, first = [], [], 0
        longest = max(found.shape[1] for found in codes.values())
        for kind, found in codes.items():
            vectors = torch.cat([self.first_token[None], self.ontologies[kind](), self.hidden_token[None]])
            tables.append(vectors + self.types[kind])
            # Number 0 of a kind is [CLS]; padding is -1.
            numbered = functional.pad(torch.where(found > 0, found + first, -1), (1, 0), value=first)
            numbers.append(functional.pad(numbered, (0, longest - found.shape[1]), value=-1))
            first += len(vectors)
        joined = torch.cat(numbers)
        packing = Packing.of(joined >= 0)
        tokens = functional.embedding(packing.packed(joined), torch.cat(tables))
        for number, block in enumerate(self.blocks, start=1):
            assert isinstance(block, SetBlock)
            tokens = block.packed(tokens, packing, first_only=number == len(self.blocks))
        return dict(zip(codes, torch.split(tokens, [len(found) for found in codes.values()]), strict=True))

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs] of the current visit."""
        visit_mask = visits.visit_mask
        earlier = earlier_visits(visit_mask)
        count = earlier.sum(dim=1, keepdim=True)
        # Of a kind that the current visit does not show, the history alone is read.
        read = {kind: visit_mask if kind in self.current else earlier for kind in self.kinds}
        encoded = self.encode({kind: visits.codes[kind][read[kind]] for kind in self.kinds})
        histories, now = [], []
        for kind in self.kinds:
            real = self.mapping[kind](encoded[kind])
            vectors = real.new_zeros(*visit_mask.shape, real.shape[1]).index_put((read[kind],), real)
            mean = (vectors * earlier[:, :, None]).sum(dim=1) / count.clamp(min=1)
            histories.append(torch.where(count > 0, mean, self.no_history[kind]))
            if kind in self.current:
                now.append(at_last_visit(vectors, visit_mask))
        logits: Tensor = self.person(self.head(torch.cat([*histories, *now], dim=1)), visits)
        return logits

    def pretraining_loss(self, visits: Mapping[str, Tensor]) -> Tensor:
        """Return the sum of the cross-entropies [N] of all pairs of kinds; masks come from torch's global generator.

        A kind of which a visit has no code predicts nothing.
        """
        losses = []
        targets = {kind: self._sets(kind, visits[kind]) for kind in self.kinds}
        vectors = self.encode(
            {kind: masked(visits[kind], self.sizes.codes[kind], self.settings.mask_rate) for kind in self.kinds}
        )
        for source in self.kinds:
            present = (visits[source] > 0).any(dim=1)
            for target in self.kinds:
                logits = self.pretraining[f"{source}_to_{target}"](vectors[source])
                entropy = functional.binary_cross_entropy_with_logits(logits, targets[target], reduction="none")
                losses.append(entropy.mean(dim=1) * present)
        return torch.stack(losses).sum(dim=0)

    def _sets(self, kind: str, codes: Tensor) -> Tensor:
        sets = torch.zeros(len(codes), self.sizes.codes[kind] + 1, device=codes.device)
        return sets.scatter_(1, codes, 1.0)[:, 1:]


def masked(codes: Tensor, count: int, rate: float) -> Tensor:
    """Hide a share of the codes: of these 80 % become the mask (number count + 1), 10 % a random code, 10 % stay."""
    hidden = (torch.rand(codes.shape, device=codes.device) < rate) & (codes > 0)
    fate = torch.rand(codes.shape, device=codes.device)
    replaced = torch.where(fate < 0.9, torch.randint_like(codes, 1, count + 1), codes)
    return torch.where(hidden, torch.where(fate < 0.8, count + 1, replaced), codes)


def _small_first_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def build(settings: GBERTSettings, facts: Facts) -> GBERT:
    """Build the network for the data and the hierarchies that the facts describe."""
    codes = vocabularies_of(facts).codes
    numbers = {
        str(kind): ancestor_numbers(found, facts["ancestors"][kind])
        if kind in facts["ancestors"]
        else np.zeros((len(found), 0), dtype=np.int64)
        for kind, found in codes.items()
    }
    place = {code: number for number, code in enumerate(codes["medication"], start=1)}
    labels = facts["medication_labels"]
    return GBERT(
        sizes_of(facts),
        settings,
        ancestors=numbers,
        current=facts["current"],
        medication_of_label=None if labels is None else np.array([place.get(code, 0) for code in labels]),
    )


def knowledge(problem: Problem, settings: GBERTSettings, vocabularies: Vocabularies) -> Knowledge:
    """Return the ancestors of all codes, and what the task shows of the current visit."""
    trees = known_trees(vocabularies, settings.without)
    task = problem.instances.task
    facts = {
        **trees.facts,
        "current": list(task.inputs_of_current_visit(problem.instances.settings)),
        "medication_labels": list(problem.instances.label_vocabulary) if task.label_codes == "medication" else None,
    }
    return Knowledge(facts, trees.notes)


def loss(network: GBERT, visits: Visits, targets: Tensor, epoch: int, kind: LabelKind) -> Tensor:
    """Return the loss of pre-training or of fine-tuning, whichever has its turn."""
    if phase_of_epoch(epoch, network.settings) == "fine-tuning":
        return cross_entropy(network, visits, targets, epoch, kind)
    current = pretraining_visits(visits, labels=targets, medication_of_label=network.medication_of_label)
    return network.pretraining_loss(current).mean()


NETWORK = VisitNetwork(
    build,
    bias=lambda network: network.head[-1].bias,
    loss=loss,
    knowledge=knowledge,
    is_judged=lambda settings, epoch: phase_of_epoch(epoch, settings) == "fine-tuning",
)
SYSTEM = System(
    name="g_bert",
    description="a transformer over the codes of a visit, embedded through CCS and ATC, pre-trained on masked codes",
    settings=GBERTSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    knowledge=tuple(TABLES.values()),
    optional_knowledge={table: tree_word(kind) for kind, table in TABLES.items()},
    title=lambda settings: variant_name("G-BERT", KNOWLEDGE, settings.without),
    fit=NETWORK.fit,
    predict=NETWORK.predict,
)
