"""A small hospital, a tiny language model and finished runs, for attacks that need them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from tiny_backbones import tiny_model, tiny_tokenizer
from tiny_runs import write_hospital

from attack.outcome import plm
from patients_like_me.codes.store import CodeStore
from patients_like_me.records.prepare import prepare

STRATEGIES = ("vem", "alternating", "end_to_end", "two_stage", "lm_only")
PLAIN = ("logistic", "boosting", "neighbors", "frequency", "repeat", "linear", "references")


@dataclass
class Stage:
    """Folders that attacks share; nothing in them is changed."""

    room: Path
    cohort: Path
    newcomers: Path
    backbone: Path
    runs: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def built(cls, room: Path) -> Stage:
        """Write the hospital and the model."""
        store = CodeStore(room / "codes")
        cohorts = []
        for name, patients, seed in (("cohort", 60, 0), ("newcomers", 12, 1)):
            source = write_hospital(room / f"{name}-tables", patients=patients, seed=seed, prefix=f"pat{name[0]}")
            cohorts.append(prepare("tables", source, room / name, store=store).folder)
        backbone = room / "tiny-bert"
        tiny_model("bert", max_position_embeddings=256).save_pretrained(backbone)
        tiny_tokenizer().save_pretrained(backbone)
        return cls(room, *cohorts, backbone)

    def training(self, out: Path, *, system: str = "patients_like_me", strategy: str = "", cache: Path) -> list[str]:
        """Return the words of a training of seconds."""
        words = ["train", str(self.cohort), "--task", "readmission", "--out", str(out), "--system", system]
        if system == "patients_like_me":
            words += ["--strategy", strategy or "vem", "--backbone", str(self.backbone), "--cache", str(cache)]
            for change in (
                "backbone.trainable_layers=1", "backbone.attention_dropout=null", "graph.tau=2", "graph.max_neighbors=8",
                "max_tokens=128", "precision=float32", "batch_size=16", "backbone_rate=0.001", "rate=0.005", "epochs=2",
                "graph_steps=10",
            ):  # fmt: skip
                words += ["--set", change]
        return words

    def run(self, system: str, strategy: str = "") -> Path:
        """Return a finished run."""
        name = f"{system}-{strategy}"
        if name not in self.runs:
            out = self.room / "runs" / name
            with mock.patch.dict("os.environ", {"PLM_CODES": str(self.room / "codes")}):
                told = plm(
                    *self.training(out, system=system, strategy=strategy, cache=self.room / "cache"), seconds=300
                )
            assert told.code == 0, told
            self.runs[name] = out
        return self.runs[name]
