"""Parts that the networks over visits share: code sets, masks, sequences of visits, time gaps and the last layer.

Shapes: B instances, V visits, C codes of a visit, D the width of a vector. Visits are oldest first and padded at the
end; code number 0 is padding. Nothing here looks beyond the mask, so padding never changes a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Embeddings start as small as in the public code of RETAIN and GRAM: sums over many codes stay near zero.
FIRST_WEIGHTS = 0.1


@dataclass(frozen=True)
class Sizes:
    """What a network has to know of its data: vocabulary sizes without the padding, and the widths of both ends.

    >>> Sizes({"diagnosis": 285, "medication": 269}, demographics=3, outputs=1).all_codes
    554
    """

    codes: Mapping[str, int]
    demographics: int
    outputs: int

    @property
    def all_codes(self) -> int:
        """Return the number of codes over all kinds."""
        return sum(self.codes.values())


class Visits(Protocol):
    """The tensors of a batch that a network reads."""

    @property
    def codes(self) -> Mapping[str, Tensor]:
        """Code numbers by kind, [B, V, C]; 0 is padding."""

    @property
    def visit_mask(self) -> Tensor:
        """True for real visits, [B, V]."""

    @property
    def gaps(self) -> Tensor:
        """Days since the admission of the visit before, [B, V]."""

    @property
    def dated(self) -> Tensor:
        """False where an instance has no dates, [B]."""

    @property
    def demographics(self) -> Tensor:
        """Age, sex and the like, [B, sizes.demographics]."""


class CodeSetEmbedding(nn.Module):
    """The sum of the embeddings of all codes of a visit, over all kinds: v_t = sum_k W_k x_t^k.

    >>> embedding = CodeSetEmbedding(Sizes({"diagnosis": 4}, demographics=0, outputs=1), width=3)
    >>> two_visits = {"diagnosis": torch.tensor([[[1, 2, 0], [0, 0, 0]]])}
    >>> vectors = embedding(two_visits)
    >>> tuple(vectors.shape), bool((vectors[0, 1] == 0).all())
    ((1, 2, 3), True)
    """

    def __init__(self, sizes: Sizes, width: int) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {kind: nn.Parameter(first_embeddings(count + 1, width)) for kind, count in sizes.codes.items()}
        )

    def forward(self, codes: Mapping[str, Tensor]) -> Tensor:
        """Return visit vectors [B, V, width]."""
        return torch.stack([sum_of_codes(codes[kind], weight) for kind, weight in self.weights.items()]).sum(0)

    def of_each_code(self, kind: str, codes: Tensor) -> Tensor:
        """Return one vector per code, [B, V, C, width]; those of padding are zero."""
        return functional.embedding(codes, self.weights[kind]) * (codes > 0).unsqueeze(-1)


def first_embeddings(rows: int, width: int) -> Tensor:
    """Draw the first embeddings of ``rows`` codes; row 0, the padding, is zero."""
    weights = torch.empty(rows, width).uniform_(-FIRST_WEIGHTS, FIRST_WEIGHTS)
    weights[0] = 0.0
    return weights


def sum_of_codes(codes: Tensor, weight: Tensor) -> Tensor:
    """Sum the rows of ``weight`` [codes + 1, D] over the codes of each visit; padding adds nothing.

    >>> sum_of_codes(torch.tensor([[[1, 2, 0]]]), torch.tensor([[9.0], [1.0], [3.0]]))
    tensor([[[4.]]])
    """
    instances, visits, width = codes.shape
    if width == 0:
        return weight.new_zeros(instances, visits, weight.shape[1])
    summed = functional.embedding_bag(codes.reshape(-1, width), weight, mode="sum", padding_idx=0)
    return summed.view(instances, visits, -1)


def multi_hot(codes: Mapping[str, Tensor], sizes: Sizes) -> Tensor:
    """Return 1 where a visit has a code, [B, V, all codes], the kinds in the order of ``sizes.codes``.

    >>> sizes = Sizes({"diagnosis": 2, "procedure": 1}, demographics=0, outputs=1)
    >>> multi_hot({"diagnosis": torch.tensor([[[2, 0]]]), "procedure": torch.tensor([[[1]]])}, sizes)
    tensor([[[0., 1., 1.]]])
    """
    blocks = []
    for kind, count in sizes.codes.items():
        numbers = codes[kind]
        present = torch.zeros(*numbers.shape[:2], count + 1, device=numbers.device)
        blocks.append(present.scatter(2, numbers, 1.0)[..., 1:])
    return torch.cat(blocks, dim=-1)


def masked_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax over the places where ``mask`` is True; elsewhere 0, also where no place is left.

    >>> masked_softmax(torch.tensor([[0.0, 0.0, 5.0]]), torch.tensor([[True, True, False]]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim) * mask


def masked_max(values: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Maximum over the places where ``mask`` is True; 0 where no place is left.

    >>> masked_max(torch.tensor([[-2.0, -1.0, 7.0]]), torch.tensor([[True, True, False]]), dim=1)
    tensor([-1.])
    """
    lowest = torch.finfo(values.dtype).min
    return values.masked_fill(~mask, lowest).amax(dim).masked_fill(~mask.any(dim), 0.0)


def last_visits(visit_mask: Tensor) -> Tensor:
    """Return the place of each instance's current visit, [B].

    >>> last_visits(torch.tensor([[True, True, False], [True, False, False]]))
    tensor([1, 0])
    """
    return visit_mask.sum(1).sub(1).clamp(min=0)


def at_last_visit(values: Tensor, visit_mask: Tensor) -> Tensor:
    """Return the values [B, D] of the current visits from values [B, V, D]."""
    return values[torch.arange(len(values), device=values.device), last_visits(visit_mask)]


def earlier_visits(visit_mask: Tensor) -> Tensor:
    """Return which visits [B, V] are before the current one.

    >>> earlier_visits(torch.tensor([[True, True, False], [True, False, False]])).tolist()
    [[True, False, False], [False, False, False]]
    """
    places = torch.arange(visit_mask.shape[1], device=visit_mask.device)
    return places < visit_mask.sum(dim=1, keepdim=True) - 1


def newest_first(values: Tensor, visit_mask: Tensor) -> Tensor:
    """Reverse the real visits of each instance; padding stays at the end. Applied twice it changes nothing.

    >>> mask = torch.tensor([[True, True, False]])
    >>> newest_first(torch.tensor([[[1.0], [2.0], [0.0]]]), mask).flatten()
    tensor([2., 1., 0.])
    """
    places = torch.arange(values.shape[1], device=values.device).expand(len(values), -1)
    mirrored = last_visits(visit_mask).unsqueeze(1) - places
    order = torch.where(mirrored >= 0, mirrored, places)
    return values.gather(1, order.unsqueeze(-1).expand_as(values))


class Dropout(nn.Module):
    """Dropout that draws 16 bits per value instead of a whole random number, which is three times as fast on a CPU.

    Shares are rounded to multiples of 1 / 65,536, and what is kept is scaled by the rounded share.

    >>> dropout = Dropout(0.75)
    >>> sorted(set(dropout(torch.ones(1000)).tolist())), dropout.eval()(torch.ones(2)).tolist()
    ([0.0, 4.0], [1.0, 1.0])
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.dropped = min(round(share * 65_536), 65_535)

    def forward(self, values: Tensor) -> Tensor:
        """Drop values in training; return them as they are otherwise."""
        if not (self.training and self.dropped and values.numel()):
            return values
        if values.device.type != "cpu":
            return functional.dropout(values, self.dropped / 65_536)
        count = values.numel()
        drawn = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
        kept = (drawn[:count] >= self.dropped - 32_768).to(values.dtype).mul_(65_536 / (65_536 - self.dropped))
        return values * kept.view(values.shape)


class VisitGru(nn.Module):
    """A GRU over visits; its states at padded visits are zero.

    Padding is at the end, so the states of real visits never see it and nothing has to be packed.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, hidden, batch_first=True)

    def forward(self, vectors: Tensor, visit_mask: Tensor) -> Tensor:
        """Return the state after each visit, [B, V, hidden]."""
        states: Tensor = self.gru(vectors)[0]
        return states * visit_mask.unsqueeze(-1)


def log_gaps(gaps: Tensor) -> Tensor:
    """Return log(1 + days) as a column, [B, V, 1]; the first visit has 0.

    >>> log_gaps(torch.tensor([[0.0, 9.0]])).flatten()
    tensor([0.0000, 2.3026])
    """
    return torch.log1p(gaps.clamp(min=0)).unsqueeze(-1)


class Head(nn.Module):
    """The last layer: logits = W z + b + W_d demographics.

    The papers read codes alone. Every system here gets the same inputs, so demographics join in the last layer, where
    they disturb no mechanism and no explanation.
    """

    def __init__(self, width: int, sizes: Sizes) -> None:
        super().__init__()
        self.output = nn.Linear(width, sizes.outputs)
        self.person = nn.Linear(sizes.demographics, sizes.outputs, bias=False) if sizes.demographics else None

    def forward(self, vectors: Tensor, demographics: Tensor) -> Tensor:
        """Return logits [B, outputs]."""
        logits: Tensor = self.output(vectors)
        return logits + self.of_demographics(demographics)

    def of_demographics(self, demographics: Tensor) -> Tensor:
        """Return what demographics add to the logits, [B, outputs]."""
        if self.person is None:
            return demographics.new_zeros(len(demographics), self.output.out_features)
        added: Tensor = self.person(demographics)
        return added


def head_bias(network: nn.Module) -> Tensor | None:
    """Return the constants [outputs] of a network's :class:`Head`; None where it ends in something else."""
    head = getattr(network, "head", None)
    return head.output.bias if isinstance(head, Head) else None


def squared_weights(*weights: Tensor) -> Tensor:
    """Return the sum of squares over several weights, for an L2 penalty.

    >>> squared_weights(torch.tensor([1.0, 2.0]), torch.tensor([[3.0]]))
    tensor(14.)
    """
    return torch.stack([weight.square().sum() for weight in weights]).sum()


def contrast(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the symmetric contrastive loss [N] of pairs of rows [N, D], by cosine.

    >>> pairs = torch.eye(2)
    >>> [round(value, 3) for value in contrast(pairs, pairs, 1.0).tolist()]
    [0.313, 0.313]
    """
    scores = functional.normalize(first, dim=1) @ functional.normalize(second, dim=1).T / temperature
    places = torch.arange(len(scores), device=scores.device)
    one, other = (functional.cross_entropy(each, places, reduction="none") for each in (scores, scores.T))
    return (one + other) / 2
