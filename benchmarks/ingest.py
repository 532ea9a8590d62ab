"""Measure ``plm prepare`` on a synthetic hospital of full MIMIC-IV size.

A hospital of about 180,000 patients, 430,000 admissions, 4.7 million diagnosis rows and 15 million prescription rows
is written as gzipped CSV (once; kept in the cache folder for the next run). Then, alternating in one run:

- a *bare scan*: polars reads the same columns of the same files into memory and does nothing with them;
- ``plm prepare``: the whole way to a cohort folder, with hashes, code maps, filters and Parquet.

Each is a fresh process, so both times hold the start of Python and the loading of polars. ``plm`` runs as it does where
it is installed: before the first round a hospital of 20 patients is prepared once, so that its byte code and its
compiled loops are there.

Figures: ``peak_gib`` (largest memory of any prepare, aim under 4), ``ratio_to_bare_scan`` (median time of prepare
over median time of the bare scan, aim at most 1.5), ``processor_ratio`` (the same of processor time, of all cores),
``rows`` (event rows read), and the seconds of each. ``start_seconds`` and ``bare_start_seconds`` are what the two
take for the hospital of 20 patients: what remains when there is nothing to read.
With ``--form`` the same hospital is written in that form and read from it; the figures are then ``omop_ratio`` and
``omop_peak_gib`` (aims 2 and 4; Parquet), ``meds_ratio`` and ``meds_peak_gib`` (aims 2 and 4), ``fhir_ratio`` and
``fhir_peak_gib`` (aims 3 and 4).

    python benchmarks/ingest.py [--quick] [--patients N] [--form omop|meds|fhir] [--folder FOLDER] [--rounds 3]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from _measure import Measured, close_with, machine, measure

FULL, QUICK = 180_000, 9_000
COLUMNS = {
    "patients": ["subject_id", "gender", "anchor_age", "anchor_year", "dod"],
    "admissions": [
        "subject_id",
        "hadm_id",
        "admittime",
        "dischtime",
        "deathtime",
        "insurance",
        "language",
        "marital_status",
        "race",
        "hospital_expire_flag",
    ],
    "diagnoses_icd": ["subject_id", "hadm_id", "icd_code", "icd_version"],
    "procedures_icd": ["subject_id", "hadm_id", "icd_code", "icd_version", "chartdate"],
    "prescriptions": ["subject_id", "hadm_id", "starttime", "drug", "ndc"],
}


OMOP_COLUMNS = {
    "condition_occurrence": [
        "visit_occurrence_id",
        "person_id",
        "condition_start_date",
        "condition_start_datetime",
        "condition_concept_id",
        "condition_source_value",
        "condition_source_concept_id",
        "condition_type_concept_id",
    ],
    "procedure_occurrence": [
        "visit_occurrence_id",
        "person_id",
        "procedure_date",
        "procedure_concept_id",
        "procedure_source_value",
        "procedure_source_concept_id",
    ],
    "drug_exposure": [
        "visit_occurrence_id",
        "person_id",
        "drug_exposure_start_date",
        "drug_exposure_start_datetime",
        "drug_concept_id",
        "drug_source_value",
        "drug_source_concept_id",
    ],
}


def bare_scan(folder: Path) -> int:
    """Read the columns that the reader needs, as text, and nothing more; return the event rows."""
    import polars as pl

    rows = 0
    for name, columns in COLUMNS.items():
        path = folder / "hosp" / f"{name}.csv.gz"
        frame = pl.scan_csv(path, infer_schema=False).select(columns).collect(engine="streaming")
        rows += frame.height if name not in ("patients", "admissions") else 0
    return rows


def bare_scan_meds(folder: Path) -> int:
    """Read subject, time, code and the extra columns of the extraction from every shard, and nothing more."""
    import polars as pl

    columns = ["subject_id", "time", "code", "hadm_id", "insurance", "language", "marital_status", "race", "ndc"]
    return sum(
        pl.scan_parquet(path).select(columns).collect(engine="streaming").height
        for path in sorted((folder / "data").rglob("*.parquet"))
    )


def bare_scan_fhir(folder: Path) -> int:
    """Parse the elements that the reader needs from every file, and nothing more."""
    import polars as pl

    from patients_like_me.records.fhir_files import RESOURCES

    rows = 0
    for path in sorted(folder.glob("*.ndjson.gz")):
        schema = RESOURCES[path.name.removesuffix(".ndjson.gz")]
        for batch in pl.scan_ndjson(path, schema=schema).collect_batches(chunk_size=500_000):
            rows += batch.height
    return rows


def bare_scan_omop(folder: Path) -> int:
    """Read the columns that the reader needs from every table, and nothing more."""
    import polars as pl

    for name in ("cdm_source", "person", "visit_occurrence", "death", "concept"):
        pl.scan_parquet(folder / f"{name}.parquet").collect(engine="streaming")
    rows = 0
    for name, columns in OMOP_COLUMNS.items():
        rows += pl.scan_parquet(folder / f"{name}.parquet").select(columns).collect(engine="streaming").height
    return rows


SCANS = {"mimic4": bare_scan, "omop": bare_scan_omop, "meds": bare_scan_meds, "fhir": bare_scan_fhir}
AIMS = {"mimic4": 1.5, "omop": 2, "meds": 2, "fhir": 3}


def write_form(form: str, hospital: Path, folder: Path) -> None:
    """Write the hospital in another form unless it is there."""
    from patients_like_me.records.forms.form import find_form

    if folder.exists():
        print(f"using the {form} form in {folder}")
        return
    started = time.perf_counter()
    print(f"writing the hospital as {form} (once) ...", flush=True)
    find_form(form).write(hospital, folder)
    print(f"written in {time.perf_counter() - started:.0f} s")


def write_hospital(folder: Path, patients: int) -> None:
    """Write the hospital unless it is there."""
    from patients_like_me.records.synthetic import write_synthetic_hospital

    if folder.exists():
        print(f"using the hospital in {folder}")
        return
    started = time.perf_counter()
    print(f"writing a synthetic hospital of {patients:,} patients (once; some minutes at full size) ...", flush=True)
    write_synthetic_hospital(
        folder,
        patients=patients,
        seed=0,
        visits_per_patient=2.39,
        # These two bring the rows per admission to those of MIMIC-IV.
        incomplete_visits=0.6,
        prescription_rows_per_drug=1.7,
    )
    print(f"written in {time.perf_counter() - started:.0f} s")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the size, under 50 seconds")
    parser.add_argument("--patients", type=int, help="another size")
    parser.add_argument("--folder", type=Path, help="where the hospitals are kept; default: the temporary folder")
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds")
    parser.add_argument("--form", choices=sorted(SCANS), default="mimic4", help="the form in which it is read")
    parser.add_argument("--scan-only", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    form = arguments.form
    if arguments.scan_only:
        print(SCANS[form](arguments.scan_only))
        return
    from patients_like_me.records.forms.synthetic import write_synthetic_hospital_as

    print(__doc__)
    patients = arguments.patients or (QUICK if arguments.quick else FULL)
    keep = arguments.folder or Path(tempfile.gettempdir()) / "plm-benchmarks"
    hospital = keep / f"hospital-{patients}"
    write_hospital(hospital, patients)
    if form != "mimic4":
        source = keep / f"{form}-{patients}"
        write_form(form, hospital, source)
        hospital = source
    scans, prepares = [], []
    with tempfile.TemporaryDirectory(dir=keep) as scratch:
        tiny = Path(scratch) / "tiny"
        write_synthetic_hospital_as(form, tiny, patients=20)
        plm = [sys.executable, "-m", "patients_like_me", "prepare", form]
        # Byte code is kept here and not next to the sources, also where the environment forbids to keep it.
        environment = {
            "PLM_CODES": f"{scratch}/codes",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": f"{keep}/bytecode",
            # polars hands its settings of memory on to child processes; a shell has none.
            "_RJEM_MALLOC_CONF": "",
        }
        scan = [sys.executable, __file__, "--form", form, "--scan-only"]
        for number in range(2):
            start = measure([*plm, str(tiny), "--out", f"{scratch}/tiny-{number}"], **environment)
        bare_start = measure([*scan, str(tiny)], **environment)
        for number in range(arguments.rounds):
            scans.append(measure([*scan, str(hospital)], **environment))
            prepares.append(measure([*plm, str(hospital), "--out", f"{scratch}/cohort-{number}"], **environment))
            print(f"bare scan {in_words(scans[-1])}; prepare {in_words(prepares[-1])}", flush=True)
            shutil.rmtree(f"{scratch}/cohort-{number}")
    seconds, bare = (statistics.median(each.seconds for each in runs) for runs in (prepares, scans))
    processor, bare_processor = (
        statistics.median(each.processor_seconds for each in runs) for runs in (prepares, scans)
    )
    peak = max(each.peak_gib for each in prepares)
    rows = SCANS[form](hospital)
    print(
        f"{rows:,} rows; ratio {seconds / bare:.2f} (aim at most {AIMS[form]}), of processor time "
        f"{processor / bare_processor:.2f}; peak {peak:.2f} GiB (aim under 4); start {start.seconds:.2f} s against "
        f"{bare_start.seconds:.2f} s; {machine()}"
    )
    names = ("ratio_to_bare_scan", "peak_gib") if form == "mimic4" else (f"{form}_ratio", f"{form}_peak_gib")
    close_with(
        {
            names[1]: round(peak, 3),
            names[0]: round(seconds / bare, 3),
            "processor_ratio": round(processor / bare_processor, 3),
            "rows": rows,
            "seconds": round(seconds, 2),
            "bare_scan_seconds": round(bare, 2),
            "processor_seconds": round(processor, 2),
            "bare_scan_processor_seconds": round(bare_processor, 2),
            "start_seconds": round(start.seconds, 2),
            "bare_start_seconds": round(bare_start.seconds, 2),
            "patients": patients,
        }
    )


def in_words(measured: Measured) -> str:
    """Say what a process took."""
    return f"{measured.seconds:.2f} s ({measured.processor_seconds:.2f} of processor time, {measured.peak_gib:.2f} GiB)"


if __name__ == "__main__":
    main()
