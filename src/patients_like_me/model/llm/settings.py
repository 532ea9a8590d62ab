"""Which generative language model a system asks, and how. Free of slow libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: What a user has to write before prompts may go to another machine.
CONSENT: Final = "patient data may leave this machine"


class LLMSettings(BaseModel):
    """The language model that writes summaries, reasons, reports or triples.

    >>> LLMSettings().name, LLMSettings(backend="decoder", model="/models/smollm2-135m").name
    ('deterministic', 'smollm2-135m')
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["deterministic", "decoder", "endpoint"] = Field(
        "deterministic", description="templates without any model, a decoder in this process, or an OpenAI-like server"
    )
    model: str = Field("", description="decoder: a backbone's name or folder; endpoint: the model's name there")
    address: str = Field("http://127.0.0.1:8080/v1", description="endpoint: where the server is")
    elsewhere: str = Field(
        "", description=f"endpoint on another machine: must be the words '{CONSENT}', since prompts hold records"
    )
    prompt_tokens: int = Field(1024, ge=32, description="longest prompt; the middle of a longer one is left out")
    new_tokens: int = Field(128, ge=1, description="longest answer")
    wait: float = Field(300.0, gt=0, description="endpoint: seconds to wait for an answer")

    @model_validator(mode="after")
    def _is_complete(self) -> LLMSettings:
        if self.backend != "deterministic" and not self.model.strip():
            raise ValueError(f"llm.model must name the model of the backend '{self.backend}'")
        if self.backend == "endpoint":
            parts = urlsplit(self.address)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("llm.address must be a web address such as http://127.0.0.1:8080/v1")
            if parts.username or parts.password:
                raise ValueError("llm.address must not hold a password; set PLM_LLM_KEY where a server asks for one")
        return self

    @property
    def name(self) -> str:
        """What tables call the language model."""
        return "deterministic" if self.backend == "deterministic" else Path(self.model).name
