"""First weights informed by the training split, so that no steps are spent on what a count can give.

Prompts of one template have nearly the same mean vector: before training, the embeddings of any two patients have a
cosine close to 1, and what tells them apart is a small remainder. The projection therefore starts so that each value
of the training embeddings has mean 0 and variance 1. Both classifiers start with the label rates as biases. The weights
of the head start at zero, so at first all patients get the same prediction. Those of the graph's classifier stay
random: an M-step keeps the weights that validate best, and where signals are weak those would be the zeros. Validation
and test are not used.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.training.data import TrainingData
from patients_like_me.training.evaluation import embed_rows
from patients_like_me.training.settings import TrainingSettings

#: Enough training instances to estimate means and variances.
_MOST_INSTANCES = 512


@torch.no_grad()
def inform_first_weights(model: PatientsLikeMeModel, data: TrainingData, settings: TrainingSettings) -> None:
    """Set the head to predict the label rates, and standardise the projection's output."""
    rates = data.kind.base_rate_logits(data.train_labels, model.settings.outputs)
    for classifier in (model.language_head, model.graph_network.classifier):
        classifier.bias.copy_(rates)
    model.language_head.weight.zero_()
    places = np.linspace(0, len(data.train_rows) - 1, min(_MOST_INSTANCES, len(data.train_rows))).astype(np.int64)
    embeddings = embed_rows(model, data, data.train_rows[places], settings)
    last = model.projection if isinstance(model.projection, nn.Linear) else list(model.projection.children())[-1]
    assert isinstance(last, nn.Linear), "a projection ends in a linear layer"
    mean, spread = embeddings.mean(dim=0), embeddings.std(dim=0, correction=0).clamp_min(1e-6)
    last.weight.div_(spread[:, None])
    last.bias.sub_(mean).div_(spread)
