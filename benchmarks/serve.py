"""Measure the server: one newcomer per request against a large bank, with 1, 4 and 16 clients.

Run ``python benchmarks/serve.py`` (some minutes) or, for a smaller bank and fewer requests, ``python
benchmarks/serve.py --quick`` (under a minute). The last line is JSON.

What is measured
- The run: MiniLM, the settings of the preset ``recommended``, a bank of 139,000 synthetic instances with 22 diagnoses
  on average. Weights are first weights and the bank's embeddings are random: what was learned does not change the work.
  The graph (tau 8, the strongest 32) is built from the diagnoses as in a training.
- The server is ``plm serve`` in a process of its own; clients are threads of this one, on the same cores. Every request
  sends another patient, as JSON in the form of docs/own-tables.md.
- ``predict_p95_ms`` and ``explain_p95_ms``: with one client; explain predicts, lists ten references with their
  importance, counter-references and the smallest turning set. All clients' figures are printed, with
  requests per second.
- ``over_bare_forward``: the median time of a predict request over the median time of the backbone's forward pass on the
  same token ids, ten of each in turns in the same minutes, with the same number of threads. The bare pass computes in
  float32, as the backbone is loaded. The server computes in bfloat16 where the processor has instructions for it;
  ``over_bare_forward_same_precision`` is the ratio to a pass that does the same, and so of what a request adds.
- ``over_bare_forward_cpu``: the same of processor time, all of the server's over that of the forward pass: what the
  server adds, on a machine that is busy with other work too. ``load`` tells how busy it was.
- ``memory_growth_mib``: the server's resident memory after 5,000 requests minus that before, both after a warm-up.
"""

from __future__ import annotations

import argparse
import copy
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
from _measure import close_with, machine
from graph import make_cohort

from patients_like_me.codes.ccs import ccs_categories
from patients_like_me.codes.store import CodeStore
from patients_like_me.records.prepare import prepare
from patients_like_me.systems.contract import Account, Fitted, RunContext
from patients_like_me.systems.problem import Problem

CLIENTS = (1, 4, 16)
#: So many passes, then so many requests, take turns.
IN_A_ROW = 10


def write_cohort(folder: Path, instances: int) -> Path:
    """Write own tables with one visit per patient and prepare them."""
    sets = make_cohort(instances)
    categories = ccs_categories("diagnosis")["ccs"].to_list()
    start = datetime(2100, 1, 1)
    generator = np.random.default_rng(1)
    days = generator.integers(0, 3000, instances)
    stays = generator.integers(1, 12, instances)
    names = [f"p{number}" for number in range(instances)]
    came = [start + timedelta(days=int(day)) for day in days]
    left = [day + timedelta(days=int(stay)) for day, stay in zip(came, stays, strict=True)]
    sexes = np.where(generator.random(instances) < 0.5, "F", "M")
    visits = {
        # A second admission of every seventh patient gives the labels both values.
        "subject_id": names + names[::7],
        "visit_id": [f"v{name}" for name in names] + [f"w{name}" for name in names[::7]],
        "admission_time": [_written(day) for day in came] + [_written(day + timedelta(days=5)) for day in left[::7]],
        "discharge_time": [_written(day) for day in left] + [_written(day + timedelta(days=7)) for day in left[::7]],
        "sex": [*sexes, *sexes[::7]],
        "age": [str(age) for age in generator.integers(20, 95, instances + len(names[::7]))],
    }
    owners = np.repeat(np.arange(instances), np.diff(sets.indptr))
    events = {
        "visit_id": [f"vp{number}" for number in owners],
        "kind": ["diagnosis/ccs"] * len(owners),
        "code": [categories[int(sets.vocabulary[code]) % len(categories)] for code in sets.codes],
    }
    tables = folder / "tables"
    tables.mkdir()
    pl.DataFrame(visits).write_parquet(tables / "visits.parquet")
    pl.DataFrame(events).write_parquet(tables / "events.parquet")
    return prepare("tables", tables, folder / "cohort", store=CodeStore(folder / "codes")).folder


def _written(day: datetime) -> str:
    return day.strftime("%Y-%m-%d %H:%M:%S")


def drawn_fit(problem: Problem, run: RunContext) -> Fitted:
    """Take first weights and random embeddings in place of a training."""
    from patients_like_me.model.joint import PatientsLikeMeModel
    from patients_like_me.runs.record import GraphSummary
    from patients_like_me.systems.patients_like_me import _bank_of
    from patients_like_me.training.preparation import model_settings
    from patients_like_me.training.trained import TrainedModel

    settings, instances = run.settings, problem.instances
    model = PatientsLikeMeModel.build(model_settings(instances, settings), seed=0)
    generator = np.random.default_rng(2)
    width = model.settings.embedding_width
    bank = generator.normal(size=(len(problem.train), width)).astype(np.float32)
    trained = TrainedModel.of(model, settings, _bank_of(instances, problem, None, settings, bank))
    run.begin()
    own = {name: generator.normal(size=(len(rows), width)).astype(np.float32)
           for name, rows in (("validation", problem.validation), ("test", problem.test))}  # fmt: skip
    logits = generator.normal(size=(len(problem.evaluated), problem.outputs))

    summary = GraphSummary(edges=trained.bank.graph.edges, splits={})
    return Fitted(settings, own, account=Account(graph=summary), state=trained, evaluated=logits)


def make_run(folder: Path, instances: int) -> Path:
    """Write a run whose bank has about this many instances."""
    from patients_like_me.systems import train as training
    from patients_like_me.systems.choosing import chosen_settings
    from patients_like_me.systems.registry import find_system

    cohort = write_cohort(folder, round(instances / 0.98 / 8 * 7))
    settings, of_task = chosen_settings(
        "readmission",
        "recommended",
        system="patients_like_me",
        # Every visit is an instance, not only those that another one follows.
        task_changes={"split_shares": (0.98, 0.01, 0.01), "population": "discharged_alive"},
    )
    drawn = replace(find_system("patients_like_me"), fit=drawn_fit)
    # Drawn scores are no predictions, so they cannot be compared with any.
    with patch.multiple(training, find_system=lambda _: drawn, _refuse_other_predictions=lambda *_: None):
        training.train(cohort, "readmission", folder / "run", settings=settings, task_settings=of_task)
    found = references_of(folder / "run")
    assert abs(found / instances - 1) < 0.1, f"the bank has {found:,} instances, not {instances:,}"
    return folder / "run"


def references_of(run: Path) -> int:
    """Return how many instances the bank of a run has."""
    return int(json.loads((run / "run.json").read_text())["results"]["instances"]["train"])


def newcomers(number: int) -> list[bytes]:
    """Draw patients that nobody has seen, as bodies of requests."""
    sets = make_cohort(number, seed=9)
    categories = ccs_categories("diagnosis")["ccs"].to_list()
    generator = np.random.default_rng(3)
    found = []
    for place in range(number):
        codes = [f"ccs:{categories[int(code) % len(categories)]}" for code in sets.of(place)]
        visit = {"admission": "2110-03-01", "discharge": "2110-03-08", "diagnoses": codes}
        person = {"age": int(generator.integers(20, 95)), "sex": "F" if place % 2 else "M", "visits": [visit]}
        found.append(json.dumps(person).encode())
    return found


class Server:
    """``plm serve`` in a process of its own."""

    def __init__(self, run: Path, folder: Path) -> None:
        words = [sys.executable, "-m", "patients_like_me", "serve", str(run), "--port", "0"]
        words += ["--access-log", str(folder / "access.jsonl"), "--tokens", str(folder / "tokens.json")]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", line):
                self.port, self.token = int(found[1]), found[2]
                break
        else:
            raise SystemExit("the server did not start")

    def connection(self) -> http.client.HTTPConnection:
        """Return a connection that stays open."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[float, int]:
        """Return the milliseconds and the status of a request."""
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        started = time.perf_counter()
        connection.request("POST", f"/api/v1/{path}", body, headers)
        answer = connection.getresponse()
        answer.read()
        return 1e3 * (time.perf_counter() - started), answer.status

    def cpu_ms(self) -> float:
        """Return the processor time that the server has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return 1e3 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """Return the resident memory of the server."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1024

    def stop(self) -> None:
        """End the server."""
        self.process.terminate()
        self.process.wait(30)


def crowd(server: Server, path: str, bodies: list[bytes], clients: int) -> tuple[np.ndarray, float, int]:
    """Send every body once, shared out among clients; return milliseconds, requests per second and errors."""
    times: list[float] = []
    errors = 0
    lock = threading.Lock()
    waiting = iter(bodies)

    def work() -> None:
        nonlocal errors
        connection = server.connection()
        while True:
            with lock:
                body = next(waiting, None)
            if body is None:
                return
            took, status = server.ask(connection, path, body)
            with lock:
                times.append(took)
                errors += status != 200

    threads = [threading.Thread(target=work) for _ in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array(times), len(bodies) / (time.perf_counter() - started), errors


def bare_forward(run: Path, bodies: list[bytes], server: Server) -> dict[str, float]:
    """Measure the backbone alone, as the server computes and in float32, and predict requests in turns with it.

    All are medians of milliseconds; ``cpu`` is the ratio of processor times.
    """
    import torch

    from patients_like_me.model.backbone import Batch
    from patients_like_me.records.newcomers import Newcomer
    from patients_like_me.records.newcomers_at_once import QuickReader
    from patients_like_me.runs.run import load_run
    from patients_like_me.systems.keeping import load_fitted
    from patients_like_me.systems.registry import find_system
    from patients_like_me.tasks.instances import instances_to_predict
    from patients_like_me.tasks.one_instance import parts_of_one

    opened = load_run(run)
    trained = load_fitted(find_system("patients_like_me"), opened).state
    backbone, precision = trained.model.backbone.eval(), trained.settings.precision
    plain = copy.deepcopy(backbone)
    backbone.keep_in(precision)
    reader, connection = QuickReader(), server.connection()
    bare: list[float] = []
    bare_float32: list[float] = []
    whole: list[float] = []
    own_cpu = server_cpu = 0.0
    for first in range(0, len(bodies), IN_A_ROW):
        some = bodies[first : first + IN_A_ROW]
        batches = []
        for body in some:
            found = reader.cohort_of([Newcomer.model_validate_json(body)])
            assert found is not None
            instances = instances_to_predict(found[0], opened.task, opened.task_settings, opened.label_vocabulary)
            ids = torch.tensor(backbone.token_ids([parts_of_one(instances).write()], max_tokens=512))
            mask = torch.ones_like(ids, dtype=torch.bool)
            batches.append(Batch("tokens", ids, mask, torch.zeros(1, dtype=torch.long)))
        # The first of each row finds another model's weights in the processor's caches, and is left out.
        with torch.inference_mode():
            used = time.process_time()
            bare += [milliseconds(partial(backbone.pool, batch, precision)) for batch in batches][1:]
            own_cpu += 1e3 * (time.process_time() - used)
            bare_float32 += [milliseconds(partial(plain, batch)) for batch in batches][1:]
        used = server.cpu_ms()
        whole += [server.ask(connection, "predict", body)[0] for body in some][1:]
        server_cpu += server.cpu_ms() - used
    times = {"bare": bare, "bare_float32": bare_float32, "predict": whole}
    return {name: float(np.median(each)) for name, each in times.items()} | {"cpu": server_cpu / own_cpu}


def milliseconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - started)


def main() -> None:
    """Measure everything and print it, the last line as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller bank and fewer requests")
    parser.add_argument("--run", type=Path, help="a run folder that an earlier call kept")
    parser.add_argument("--keep", type=Path, help="keep the run in this folder")
    given = parser.parse_args()
    bank, measured, whole = (5_000, 12, 150) if given.quick else (139_000, 300, 5_000)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        run = given.run or make_run(folder, bank)
        made = time.perf_counter() - started
        started = time.perf_counter()
        server = Server(run, Path(temporary))
        opened = time.perf_counter() - started
        print(f"{machine()}; run made in {made:.0f} s, opened by the server in {opened:.1f} s", flush=True)
        try:
            figures = measure(run, server, measured, whole)
        finally:
            server.stop()
    close_with(figures)


def measure(run: Path, server: Server, measured: int, whole: int) -> dict[str, Any]:
    """Ask the server in all ways and return the figures."""
    bodies = newcomers(max(whole, 4 * measured))
    explained = [json.dumps({"patient": json.loads(body)}).encode() for body in bodies]
    errors = sent = 0
    # Every thread of the server has its own memory: all of them must have worked once.
    for path, given in (("predict", bodies), ("explain", explained)):
        crowd(server, path, given[: max(measured // 2, 20)], CLIENTS[-1])
    before = server.memory_mib()
    figures: dict[str, Any] = {"bank": references_of(run)}
    for path, given in (("predict", bodies), ("explain", explained)):
        for clients in CLIENTS:
            used = server.cpu_ms()
            times, rate, failed = crowd(server, path, given[:measured], clients)
            used = (server.cpu_ms() - used) / measured
            errors, sent = errors + failed, sent + measured
            p50, p95 = np.percentile(times, [50, 95])
            print(
                f"{path}, {clients} clients: p50 {p50:.0f} ms, p95 {p95:.0f} ms, "
                f"{rate:.1f} requests/s, CPU {used:.0f} ms",
                flush=True,
            )
            parts = {"p50": p50, "p95": p95, "rate": rate, "cpu": used}
            figures[f"{path}_{clients}_clients"] = {name: round(float(value), 1) for name, value in parts.items()}
    turns = bare_forward(run, bodies[: min(measured, 100)], server)
    sent += min(measured, 100)
    while sent < whole:
        part = min(500, whole - sent)
        _, _, failed = crowd(server, "predict", bodies[sent : sent + part], 4)
        errors, sent = errors + failed, sent + part
    after = server.memory_mib()
    print(
        f"bare forward {turns['bare_float32']:.1f} ms (in the server's precision {turns['bare']:.1f} ms), "
        f"predict in turns with it {turns['predict']:.1f} ms"
    )
    print(f"memory {before:.0f} MiB before, {after:.0f} MiB after {sent:,} requests; {errors} errors")
    figures |= {
        "predict_p95_ms": figures["predict_1_clients"]["p95"],
        "explain_p95_ms": figures["explain_1_clients"]["p95"],
        "bare_forward_ms": round(turns["bare_float32"], 2),
        "bare_forward_same_precision_ms": round(turns["bare"], 2),
        "over_bare_forward": round(turns["predict"] / turns["bare_float32"], 3),
        "over_bare_forward_same_precision": round(turns["predict"] / turns["bare"], 3),
        "over_bare_forward_cpu": round(turns["cpu"], 3),
        "load": round(os.getloadavg()[0], 1),
        "requests": sent,
        "errors": errors,
        "memory_growth_mib": round(after - before, 1),
        "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
    }
    return figures


if __name__ == "__main__":
    main()
