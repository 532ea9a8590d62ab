"""A small learnable hospital and a tiny language model on disk, for whole trainings in seconds.

The fixtures are there for every room (``pytest_plugins`` in ``conftest.py``): ``make_cohort``, ``cohort_folder``,
``tiny_settings`` and ``finished_run``, which trains each asked-for run once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from tiny_backbones import WORDS, tiny_language_head_model, tiny_model, tiny_tokenizer

from patients_like_me.codes.store import CodeStore
from patients_like_me.files import digest_of_file, read_json, sealed, write_json
from patients_like_me.records.prepare import prepare
from patients_like_me.systems.train import train
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.settings import TrainingSettings, settings_of_preset

DIAGNOSES = WORDS[2:14]
DRUGS = ("insulin", "heparin", "dialysis")
#: The same hospital in codes that knowledge tables speak of: CCS categories and ATC-3.
CODES = {word: str(100 + at) for at, word in enumerate(DIAGNOSES)}
ATC = {"insulin": "A10A", "heparin": "B01A", "dialysis": "B05D"}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Hugging Face folder with a tiny BERT."""
    folder = tmp_path_factory.mktemp("backbone") / "tiny-bert"
    tiny_model("bert", max_position_embeddings=256).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def decoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Hugging Face folder with a tiny Llama that has a language head; its tokenizer knows digits."""
    folder = tmp_path_factory.mktemp("decoder") / "tiny-llama"
    words = [*"0123456789", *"?.,:;()", "visit", "current", "similar", "outcome", "known", "question"]
    tiny_language_head_model(len(words)).save_pretrained(folder)
    tokenizer = tiny_tokenizer(*words)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}the"
    tokenizer.save_pretrained(folder)
    return folder


def write_hospital(
    folder: Path,
    *,
    patients: int,
    seed: int = 0,
    shuffle_labels: bool = False,
    prefix: str = "p",
    coded: bool = False,
) -> Path:
    """Write own tables: who has 'sepsis' comes back, stays long and gets 'heparin'; diagnoses come in clusters.

    ``coded`` writes CCS categories and ATC-3 codes in place of the words.
    """
    generator = np.random.default_rng(seed)
    visits, events, labels = ["subject_id,visit_id,order"], ["visit_id,kind,code"], []
    for patient in range(patients):
        cluster = generator.permutation(DIAGNOSES)[:6]
        for number in range(int(generator.integers(1, 4))):
            visit = f"{prefix}{patient}v{number}"
            visits.append(f"{prefix}{patient},{visit},{number}")
            codes = [code for code in cluster if generator.random() < 0.8] or [cluster[0]]
            events += [f"{visit},diagnosis/own,{CODES[code] if coded else code}" for code in codes]
            drugs = {"heparin"} if "sepsis" in codes else {"insulin"}
            drugs |= {str(generator.choice(DRUGS))}
            events += [f"{visit},medication/own,{ATC[drug] if coded else drug}" for drug in sorted(drugs)]
            labels.append((visit, int("sepsis" in codes), 9 if "sepsis" in codes else 1 + len(codes) % 2))
    if shuffle_labels:
        shuffled = generator.permutation(len(labels))
        labels = [(labels[n][0], *labels[shuffled[n]][1:]) for n in range(len(labels))]
    folder.mkdir()
    (folder / "visits.csv").write_text("\n".join(visits) + "\n")
    (folder / "events.csv").write_text("\n".join(events) + "\n")
    rows = [f"{visit},readmission,{back}\n{visit},length_of_stay,{days}" for visit, back, days in labels]
    (folder / "labels.csv").write_text("\n".join(["visit_id,task,value", *rows]) + "\n")
    return folder


def rewrite_table(cohort: Path, table: str, frame: pl.DataFrame) -> None:
    """Write a table of a cohort as if it had been prepared so: its digest is that of the new content."""
    name = f"{table}.parquet"
    frame.write_parquet(cohort / name)
    about = read_json(cohort / "cohort.json", what="cohort")
    about["digests"][name] = digest_of_file(cohort / name)
    write_json(cohort / "cohort.json", sealed(about))


@pytest.fixture(scope="session")
def make_cohort(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a hospital and prepares its cohort."""

    def make(**options: object) -> Path:
        folder = tmp_path_factory.mktemp("hospital")
        source = write_hospital(folder / "tables", **options)  # type: ignore[arg-type]
        return prepare("tables", source, folder / "cohort", store=CodeStore(folder / "codes")).folder

    return make


@pytest.fixture(scope="session")
def cohort_folder(make_cohort: Callable[..., Path]) -> Path:
    """Return the cohort of 60 patients that most tests share."""
    return make_cohort(patients=60)


@pytest.fixture(scope="session")
def coded_cohort(make_cohort: Callable[..., Path]) -> Path:
    """Return a cohort of 60 patients in CCS categories and ATC-3 codes."""
    return make_cohort(patients=60, coded=True)


@pytest.fixture(scope="session")
def made_up_knowledge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of code tables with made-up hierarchies, interactions and molecules; some codes are missing."""
    folder = tmp_path_factory.mktemp("knowledge")
    rows = [
        f"{code},{level},{group},Group {group}"
        for at, code in enumerate(list(CODES.values())[:-1])
        for level, group in ((1, f"1.{at // 3}"), (2, "1"))
    ]
    (folder / "tree.csv").write_text("\n".join(["ccs,level,ancestor,name", *rows]) + "\n")
    (folder / "pairs.csv").write_text("atc3_a,atc3_b\nA10A,B01A\n")
    (folder / "smiles.csv").write_text("atc3,smiles\nA10A,CCOC(=O)CN\nB01A,c1ccccc1CC(=O)NCC\nB01A,CCO\n")
    store = CodeStore(folder / "codes")
    for table in ("ccs_multi_dx", "ccs_multi_pr"):
        store.add(folder / "tree.csv", table=table)
    store.add(folder / "pairs.csv")
    store.add(folder / "smiles.csv")
    return store.folder


@pytest.fixture(scope="session")
def tiny_settings(tiny_folder: Path) -> Callable[..., TrainingSettings]:
    """Return a function that makes settings for trainings of seconds."""

    def make(**changes: object) -> TrainingSettings:
        base: dict[str, object] = {
            "backbone": {"name": str(tiny_folder), "trainable_layers": 1, "attention_dropout": None},
            "graph": {"tau": 2, "max_neighbors": 8},
            "max_tokens": 200,
            # Half precision rounds by the padding of a batch: what is compared exactly is computed in full.
            "precision": "float32",
            "batch_size": 16,
            "backbone_rate": 1e-3,
            "rate": 5e-3,
            "epochs": 3,
            "graph_steps": 20,
        }
        return settings_of_preset("quick", **{**base, **changes})

    return make


@pytest.fixture(scope="session")
def finished_run(
    cohort_folder: Path, tiny_settings: Callable[..., TrainingSettings], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return a function that gives the folder of a finished run of a task; the same words give the same run."""
    folder = tmp_path_factory.mktemp("runs")

    def make(task: str = "readmission", *, strategy: str = "vem", references: str = "cohort", seed: int = 0) -> Path:
        out = folder / f"{task}-{strategy}-{references}-{seed}"
        settings = tiny_settings(
            strategy=strategy, seed=seed, graph={"tau": 2, "max_neighbors": 8, "references": references}
        )
        torch.set_num_threads(1)
        train(cohort_folder, task, out, settings=settings, task_settings=TaskSettings(), cache=folder / "cache")
        return out

    return make
