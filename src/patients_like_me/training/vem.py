r"""Variational EM: the language model q_theta and the graph network p_phi train each other.

E-step (equation "e-step-obj" of the paper): with phi frozen, theta maximises

.. math:: \mathcal L_q \approx \sum_n \log q_\theta(y_n \mid h_n^{(L)}(o; \bar\phi)),

the log-likelihood of the labels after the embeddings o = LM(x) have passed through the graph. Only the language model
is mini-batched: a store P holds what the backbone pooled for all training instances, a batch writes its live rows into
P, and O = projection(P) is computed with the projection of the moment. The loss is taken over *every* labelled node.
With the gradient at the embeddings,

.. math:: G = \frac{\partial}{\partial O} \sum_m \ell(y_m, p_\phi(O)_m), \qquad
          \nabla_{proj} \mathcal L = \frac 1 N \sum_{n=1}^N \frac{\partial o_n}{\partial proj}^\top G_n, \qquad
          \nabla_{lm} \mathcal L \approx \frac 1 {|b|} \sum_{n \in b} \frac{\partial o_n}{\partial lm}^\top G_n,

the projection learns from all rows, exactly, and the backbone (lm) from the rows of its batch, whose mean over the
batches of an epoch is the whole sum. The graph costs one forward and one backward pass of projection and graph network,
whatever the language model.

M-step (equation "m-step-obj"): with theta and therefore O = projection(P) frozen, phi maximises

.. math:: \mathcal L_p = \sum_n \log p_\phi(y_n \mid O),

by full-batch steps at a constant rate until the likelihood of the validation labels stops rising. The paper starts from
the expectation under q_theta of log p_phi(y | x), takes the pseudo-likelihood of it and one sample, and writes
:math:`\sum_n \log p_\phi(y_n \mid o_n, y_{NB(n)})`. What a graph network computes conditions on the embeddings of a
node and of all nodes within L steps of it, and on no label: the neighbours' labels y_NB(n) are left out, in the paper's
implementation and here. The labels y_n are the observed ones, so no sample is drawn from q_theta. L_p is thus the
cross-entropy of the training labels, which is the E-step's graph term too; the steps differ in what is frozen.

The sums are divided so that rates do not depend on sizes: L_p and what trains the projection by N, the number of
training instances; the term that trains the backbone by |b|, the number of rows of the batch, because G_n holds the
effect of a row on all N nodes and the rows of a batch are a sample of the N terms of that sum.

Nearly all training instances have neighbours, so phi meets averages of embeddings, which differ less than single ones
do. A patient without a reference would then be predicted from values that phi has never met, mostly to an extreme.
Therefore a share of L_p (``alone_loss``) predicts every training instance from its own embedding alone.

By default P is read again before an M-step (``store_refresh``): rows that batches wrote earlier in an epoch come from
another backbone.

:func:`e_step` and :func:`m_step` are the two steps; everything else in this file serves one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.model.embedding_store import EmbeddingStore
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.propagation import NoEdges, Propagation
from patients_like_me.model.randomness import seeded
from patients_like_me.model.ranks import Ranks
from patients_like_me.training.optimisation import graph_optimizer, parameter_tensors, restore_parameters

if TYPE_CHECKING:
    from patients_like_me.tasks.kinds import LabelKind
    from patients_like_me.training.settings import TrainingSettings


@dataclass(frozen=True)
class EmProblem:
    """What both steps work on: the model, the graph of the training instances, their labels and the settings."""

    model: PatientsLikeMeModel
    graph: Propagation
    labels: Tensor
    kind: LabelKind
    settings: TrainingSettings

    def losses(self, logits: Tensor) -> Tensor:
        """Return the loss of every training instance, [N]."""
        return self.kind.loss(logits, self.labels)

    def loss_of_phi(self, embeddings: Tensor, logits: Tensor) -> Tensor:
        """Return the mean loss that trains phi: with the neighbours, and for a share ``alone_loss`` without them."""
        loss, share = self.losses(logits).mean(), self.settings.alone_loss
        if not share:
            return loss
        alone = self.losses(self.model.graph_logits(embeddings, NoEdges())).mean()
        return (1 - share) * loss + share * alone


@dataclass(frozen=True)
class LiveRows:
    """A batch with its gradient: pooled vectors, the embeddings [B, width] made of them, and its rows in the store."""

    pooled: Tensor
    embeddings: Tensor
    rows: Tensor

    @classmethod
    def of(cls, model: PatientsLikeMeModel, pooled: Tensor, rows: Tensor) -> LiveRows:
        """Project what the backbone pooled."""
        return cls(pooled, model.project(pooled), rows)


@dataclass(frozen=True)
class GraphSignal:
    """What one run of the graph over all training nodes says.

    ``gradient`` is G = dL/dO of the summed loss L; ``exact`` has the weights that all rows train, with their dL/dw:
    those of the projection, and of the graph network where it learns in the same step.
    """

    gradient: Tensor
    logits: Tensor
    loss: float
    exact: tuple[tuple[Tensor, Tensor], ...]

    def about(self, rows: Tensor) -> GraphSignal:
        """Return what it says about the rows of a batch, [B], and about the weights that all rows train."""
        return GraphSignal(self.gradient[rows], self.logits[rows], self.loss, self.exact)


@dataclass(frozen=True)
class GraphFit:
    """The result of an M-step: steps taken, the last training loss, and the best validation score."""

    steps: int
    loss: float
    best: float


def e_step(
    problem: EmProblem,
    store: EmbeddingStore,
    live: LiveRows,
    signal: GraphSignal | None,
    *,
    seed: int,
    ranks: Ranks | None = None,
) -> tuple[Tensor, GraphSignal | None]:
    """Write the batch's rows into the store, run the graph unless its signal is given, and return loss and signal.

    Only the language model minimises this loss; phi is frozen, without dropout. Of several ``ranks`` the first alone
    runs the graph and has its signal.
    """
    ranks = ranks or Ranks()
    store.write(live.rows, live.pooled)
    if signal is None and ranks.is_first:
        signal = graph_signal(problem, store.values)
    return e_step_loss(problem, live, signal_on_all(problem, live, signal, ranks), seed=seed), signal


def m_step(
    problem: EmProblem,
    embeddings: Tensor,
    validate: Callable[[], float],
    *,
    epoch: int,
    steps: int | None = None,
    soft_labels: Tensor | None = None,
) -> GraphFit:
    """Fit phi to the frozen embeddings by full-batch steps, and keep the weights that validate best.

    There are at most ``steps`` (default: ``graph_steps`` of the settings). With ``soft_labels`` (alternating training)
    a share of the loss follows the language model's own predictions.
    """
    model, settings = problem.model, problem.settings
    most = settings.graph_steps if steps is None else steps
    optimizer = graph_optimizer(model, settings)
    phi = model.phi_parameters()
    kept, best, waited = parameter_tensors(phi, "phi"), validate(), 0
    loss = float("nan")
    step = 0
    model.set_training(language=False, graph=True)
    for step in range(1, most + 1):
        with seeded(settings.seed, 3, epoch, step):
            logits = model.graph_logits(embeddings, problem.graph)
            hard = problem.loss_of_phi(embeddings, logits)
        objective = hard
        if soft_labels is not None:
            share = settings.distillation
            objective = (1 - share) * hard + share * problem.kind.loss(logits, soft_labels).mean()
        if not bool(torch.isfinite(objective)):
            raise PlmError(
                f"the loss of the graph network is no longer a number (M-step of epoch {epoch + 1}, step {step})",
                remedy="lower rate and choose another --out",
            )
        optimizer.zero_grad(set_to_none=True)
        objective.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss = float(hard.detach())
        if step % settings.graph_check == 0 or step == most:
            model.graph_network.eval()
            score = validate()
            # Not the whole model: visiting every module of the language model costs a good part of a step.
            model.graph_network.train()
            if score > best:
                kept, best, waited = parameter_tensors(phi, "phi"), score, 0
            else:
                waited += 1
                if waited >= settings.graph_patience:
                    break
    # A gradient left behind would be added to the next step of an end-to-end training.
    optimizer.zero_grad(set_to_none=True)
    restore_parameters(phi, kept, "phi")
    model.set_training(language=False, graph=False)
    return GraphFit(step, loss, best)


def graph_signal(problem: EmProblem, pooled: Tensor, *, train_graph: bool = False) -> GraphSignal:
    """Run projection and graph network over all training nodes; return the gradients of the summed loss.

    Those of the graph network are there with ``train_graph`` alone (end-to-end training).
    """
    model = problem.model
    projected = model.project(pooled.detach())
    live = projected.detach().requires_grad_(True)
    logits = model.graph_logits(live, problem.graph)
    loss = len(problem.labels) * problem.loss_of_phi(live, logits) if train_graph else problem.losses(logits).sum()
    phi = list(model.phi_parameters().values()) if train_graph else []
    gradient, *of_phi = torch.autograd.grad(loss, [live, *phi])
    weights = list(model.projection.parameters())
    of_projection = torch.autograd.grad(projected, weights, gradient)
    exact = (*zip(weights, of_projection, strict=True), *zip(phi, of_phi, strict=True))
    return GraphSignal(gradient, logits.detach(), float(loss.detach()) / len(problem.labels), exact)


def signal_on_all(
    problem: EmProblem, live: LiveRows, signal: GraphSignal | None, ranks: Ranks, *, train_graph: bool = False
) -> GraphSignal:
    """Return on every rank what the signal, which the first of them has, says about a batch.

    The gradients of the weights that all rows train stay with the first: theirs is the one that counts for all.
    """
    if signal is not None:
        of_batch = signal.about(live.rows)
    else:
        model, rows = problem.model, len(live.rows)
        phi = model.phi_parameters().values() if train_graph else ()
        of_batch = GraphSignal(
            live.embeddings.new_empty(rows, live.embeddings.shape[1]),
            live.embeddings.new_empty(rows, model.settings.outputs),
            float("nan"),
            tuple((weight, torch.zeros_like(weight)) for weight in (*model.projection.parameters(), *phi)),
        )
    ranks.fill((of_batch.gradient, of_batch.logits))
    return of_batch


def e_step_loss(problem: EmProblem, live: LiveRows, signal: GraphSignal, *, seed: int) -> Tensor:
    """Return the E-step's loss of one batch: through the graph, of the own head, and their coupling.

    ``signal`` is :meth:`GraphSignal.about` the rows of the batch. The first term has no meaning as a number: its
    gradient is that of the loss over all training nodes.
    """
    settings, rows = problem.settings, live.rows
    loss = live.embeddings.new_zeros(())
    if settings.graph_loss:
        loss = loss + settings.graph_loss * graph_term(problem, live, signal)
    if settings.head_loss or settings.coupling:
        own = problem.model.language_logits(live.embeddings)
        if settings.head_loss:
            loss = loss + settings.head_loss * problem.kind.loss(own, problem.labels[rows]).mean()
        if settings.coupling:
            loss = loss + settings.coupling * coupling_loss(problem, own, signal.logits, seed=seed)
    return loss


def graph_term(problem: EmProblem, live: LiveRows, signal: GraphSignal) -> Tensor:
    """Return <G_b, o_b> / B, which trains the backbone, plus <dL/dw, w> / N, which trains the weights of all rows."""
    embeddings = problem.model.project_frozen(live.pooled)
    through_batch = (signal.gradient * embeddings).sum() / len(live.rows)
    # Projection and graph network may be on different devices.
    parts = [(gradient * weight).sum().to(embeddings.device) for weight, gradient in signal.exact]
    through_all = torch.stack(parts).sum()
    return through_batch + through_all / len(problem.labels)


def coupling_loss(problem: EmProblem, own: Tensor, graph_logits: Tensor, *, seed: int) -> Tensor:
    """Score labels drawn from p_phi by q_theta (wake-sleep): one sample, several, or the exact expectation."""
    kind, samples = problem.kind, problem.settings.mc_samples
    if samples == "exact":
        return kind.loss(own, kind.tensor_probabilities(graph_logits)).mean()
    generator = torch.Generator().manual_seed(seed)
    drawn = [kind.sampled(graph_logits.cpu(), generator=generator) for _ in range(samples)]
    losses = [kind.loss(own, labels.to(own.device)).mean() for labels in drawn]
    return torch.stack(losses).mean()


def start_from_head(model: PatientsLikeMeModel, validate: Callable[[], float]) -> bool:
    """Start the graph network from the language model's own answer if that validates better; tell whether it did.

    The classifier reads [H ; O]: with the head's weights for O and zeros for H, p_phi equals q_theta, and the M-step
    learns what the neighbours add. Refitted on embeddings that know their labels already, it would only overfit.
    """
    classifier, head = model.graph_network.classifier, model.language_head
    kept, before = parameter_tensors(model.phi_parameters(), "phi"), validate()
    with torch.no_grad():
        classifier.weight.zero_()
        classifier.weight[:, -head.in_features :] = head.weight
        classifier.bias.copy_(head.bias)
    if validate() > before:
        return True
    restore_parameters(model.phi_parameters(), kept, "phi")
    return False
