r"""Variational EM: the language model q_theta and the graph network p_phi train each other.

E-step (equation "e-step-obj" of the paper): with phi frozen, theta maximises

.. math:: \mathcal L_q \approx \sum_n \log q_\theta(y_n \mid h_n^{(L)}(o; \bar\phi)),

the log-likelihood of the labels after the embeddings o = LM(x) went through the graph. Only the language model is
mini-batched: a store O holds the embeddings of all training instances, a batch puts its live rows into O, the loss is
taken over *every* labelled node, and its gradient reaches the batch through O. So

.. math:: \nabla_\theta \mathcal L = \sum_{n \in b} \frac{\partial o_n}{\partial \theta}^\top G_n, \qquad
          G = \frac{\partial}{\partial O} \sum_m \ell(y_m, p_\phi(O)_m),

and the graph costs one forward and one backward pass of a small network, whatever the language model.

M-step (equation "m-step-obj"): with theta and so O frozen, phi maximises :math:`\sum_n \log p_\phi(y_n \mid O)`, by
full-batch steps until the likelihood of the validation labels stops rising.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.model.embedding_store import EmbeddingStore
from patients_like_me.model.heads import loss_per_instance, probabilities, sampled_labels
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.propagation import Propagation
from patients_like_me.model.randomness import seeded
from patients_like_me.tasks.kinds import LabelKind
from patients_like_me.training.optimisation import graph_optimizer, parameter_tensors, restore_parameters
from patients_like_me.training.settings import TrainingSettings


@dataclass(frozen=True)
class GraphSignal:
    """What the frozen graph says to the language model: G = dL/dO, its own logits, and the mean loss."""

    gradient: Tensor
    logits: Tensor
    loss: float


def graph_signal(
    model: PatientsLikeMeModel, embeddings: Tensor, graph: Propagation, labels: Tensor, kind: LabelKind
) -> GraphSignal:
    """Run the frozen graph network over all training nodes; return the loss gradient at every embedding."""
    live = embeddings.detach().requires_grad_(True)
    logits = model.graph_logits(live, graph)
    loss = loss_per_instance(kind, logits, labels).sum()
    (gradient,) = torch.autograd.grad(loss, live)
    return GraphSignal(gradient, logits.detach(), float(loss.detach()) / len(labels))


def e_step_loss(
    model: PatientsLikeMeModel,
    live: Tensor,
    rows: Tensor,
    signal: GraphSignal | None,
    labels: Tensor,
    kind: LabelKind,
    settings: TrainingSettings,
    *,
    seed: int,
) -> Tensor:
    """Return the E-step's loss of one batch: through the graph, of the own head, and their coupling.

    ``live`` are the batch's embeddings with their gradient, ``rows`` their places in the store. The first term is
    <G_b, o_b>, whose gradient in theta is that of the loss over all training nodes.
    """
    loss = live.new_zeros(())
    if signal is not None and settings.graph_loss:
        loss = loss + settings.graph_loss * (signal.gradient[rows] * live).sum() / len(rows)
    if settings.head_loss or (settings.coupling and signal is not None):
        own = model.language_logits(live)
        if settings.head_loss:
            loss = loss + settings.head_loss * loss_per_instance(kind, own, labels[rows]).mean()
        if settings.coupling and signal is not None:
            loss = loss + settings.coupling * coupling_loss(own, signal.logits[rows], kind, settings, seed=seed)
    return loss


def coupling_loss(
    own: Tensor, graph_logits: Tensor, kind: LabelKind, settings: TrainingSettings, *, seed: int
) -> Tensor:
    """Score labels drawn from p_phi by q_theta (wake-sleep): one sample, several, or the exact expectation."""
    if settings.mc_samples == "exact":
        return loss_per_instance(kind, own, probabilities(kind, graph_logits)).mean()
    generator = torch.Generator().manual_seed(seed)
    drawn = [sampled_labels(kind, graph_logits.cpu(), generator=generator) for _ in range(settings.mc_samples)]
    losses = [loss_per_instance(kind, own, labels.to(own.device)).mean() for labels in drawn]
    return torch.stack(losses).mean()


def e_step(
    model: PatientsLikeMeModel,
    store: EmbeddingStore,
    live: Tensor,
    rows: Tensor,
    signal: GraphSignal | None,
    graph: Propagation,
    labels: Tensor,
    kind: LabelKind,
    settings: TrainingSettings,
    *,
    seed: int,
) -> tuple[Tensor, GraphSignal]:
    """Write the batch's rows through into the store, ask the graph where no answer is given, and return the loss.

    Only the language model is to go down this loss; phi is frozen, without dropout.
    """
    store.write(rows, live)
    if signal is None:
        signal = graph_signal(model, store.values, graph, labels, kind)
    return e_step_loss(model, live, rows, signal, labels, kind, settings, seed=seed), signal


def start_from_head(model: PatientsLikeMeModel, validate: Callable[[], float]) -> bool:
    """Let the graph network begin with the language model's own answer, if that validates better; say whether it did.

    The classifier reads [H ; O]: with the head's weights for O and zeros for H, p_phi equals q_theta, and the M-step
    learns what the neighbours add. Fitted anew on embeddings that know their labels already, it would only overfit.
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


@dataclass(frozen=True)
class GraphFit:
    """The outcome of an M-step: steps taken, the last training loss, and the best validation score."""

    steps: int
    loss: float
    best: float


def m_step(
    model: PatientsLikeMeModel,
    embeddings: Tensor,
    graph: Propagation,
    labels: Tensor,
    kind: LabelKind,
    settings: TrainingSettings,
    validate: Callable[[], float],
    *,
    epoch: int,
    soft_labels: Tensor | None = None,
) -> GraphFit:
    """Fit phi to the frozen embeddings by full-batch steps, and keep the weights that validate best.

    With ``soft_labels`` (alternating training) a share of the loss follows the language model's own predictions.
    """
    optimizer = graph_optimizer(model, settings)
    phi = model.phi_parameters()
    kept, best, waited = parameter_tensors(phi, "phi"), validate(), 0
    loss = float("nan")
    step = 0
    model.set_training(language=False, graph=True)
    for step in range(1, settings.graph_steps + 1):
        with seeded(settings.seed, 3, epoch, step):
            logits = model.graph_logits(embeddings, graph)
        hard = loss_per_instance(kind, logits, labels).mean()
        if soft_labels is None:
            objective = hard
        else:
            share = settings.distillation
            objective = (1 - share) * hard + share * loss_per_instance(kind, logits, soft_labels).mean()
        if not bool(torch.isfinite(objective)):
            raise PlmError(
                f"the loss of the graph network is no longer a number (M-step of epoch {epoch + 1}, step {step})",
                remedy="lower rate and choose another --out",
            )
        optimizer.zero_grad(set_to_none=True)
        objective.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss = float(hard.detach())
        if step % settings.graph_check == 0 or step == settings.graph_steps:
            model.graph_network.eval()
            score = validate()
            # Not the whole model: to visit every module of the language model costs a good part of a step.
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
