"""The model: a language model that reads one patient, and a graph network that lets patients inform each other.

``theta`` is the language model with its projection and its own head; ``phi`` is the graph network with its
classifier. ``backbones`` and ``loading`` bring a language model, ``joint`` puts both parts together, ``prompt_inputs``
and ``hidden_state_cache`` feed it, ``persistence`` saves and loads it.
"""

from __future__ import annotations
