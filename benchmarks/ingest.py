"""Measure ``plm prepare`` on a synthetic hospital of full MIMIC-IV size.

A hospital of about 180,000 patients, 430,000 admissions, 4.7 million diagnosis rows and 15 million prescription rows
is written as gzipped CSV (once; kept in the cache folder for the next run). Then, alternating in one run and each in a
process of its own:

- a *bare scan*: polars reads the same columns of the same files and does nothing with them;
- ``plm prepare``: the whole way to a cohort folder, with hashes, code maps, filters and Parquet.

Figures: ``peak_gib`` (largest memory of any prepare, aim under 4), ``ratio_to_bare_scan`` (median time of prepare
over median time of the bare scan, aim at most 1.5), ``rows`` (event rows read), and the seconds of each.

With ``--form`` the same hospital is read in another form (``omop`` and ``meds``: Parquet, ``fhir``: NDJSON), and the
figures are called after it: ``omop_ratio`` and ``meds_ratio`` (aim at most 2), ``fhir_ratio`` (aim at most 3), and
``omop_peak_gib`` and so on.

    python benchmarks/ingest.py [--form mimic4] [--quick] [--folder FOLDER] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from _measure import close_with, machine, run_measured

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
    "diagnoses_icd": ["hadm_id", "icd_code", "icd_version"],
    "procedures_icd": ["hadm_id", "icd_code", "icd_version", "chartdate"],
    "prescriptions": ["hadm_id", "starttime", "drug", "ndc"],
}


OMOP_EVENTS = {
    "condition_occurrence": ("condition", "condition_start", ["condition_type_concept_id"]),
    "procedure_occurrence": ("procedure", "procedure", []),
    "drug_exposure": ("drug", "drug_exposure_start", []),
}


def scan_mimic4(folder: Path) -> int:
    """Read the columns that the reader needs, as text, and nothing more; return the event rows."""
    import polars as pl

    rows = 0
    for name, columns in COLUMNS.items():
        path = folder / "hosp" / f"{name}.csv.gz"
        frame = pl.scan_csv(path, infer_schema=False).select(columns).collect(engine="streaming")
        rows += frame.height if name not in ("patients", "admissions") else 0
    return rows


def scan_omop(folder: Path) -> int:
    """Read the columns of the OMOP tables that the reader needs."""
    import polars as pl

    for name in ("cdm_source", "person", "visit_occurrence", "death", "concept"):
        pl.scan_parquet(folder / f"{name}.parquet").collect(engine="streaming")
    rows = 0
    for name, (prefix, clock, more) in OMOP_EVENTS.items():
        scanned = pl.scan_parquet(folder / f"{name}.parquet")
        wanted = ["visit_occurrence_id", f"{clock}_date", f"{clock}_datetime", f"{prefix}_concept_id"]
        wanted += [f"{prefix}_source_value", f"{prefix}_source_concept_id", *more]
        there = set(scanned.collect_schema())
        rows += scanned.select([column for column in wanted if column in there]).collect(engine="streaming").height
    return rows


def scan_meds(folder: Path) -> int:
    """Read subject, time, code and the extra columns of the extraction from every shard, and nothing more."""
    import polars as pl

    columns = ["subject_id", "time", "code", "hadm_id", "insurance", "language", "marital_status", "race", "ndc"]
    return sum(
        pl.scan_parquet(path).select(columns).collect(engine="streaming").height
        for path in sorted((folder / "data").rglob("*.parquet"))
    )


def scan_fhir(folder: Path) -> int:
    """Parse the elements that the reader needs from every file, and nothing more."""
    import polars as pl

    from patients_like_me.records.fhir_files import RESOURCES

    rows = 0
    for path in sorted(folder.glob("*.ndjson.gz")):
        schema = RESOURCES[path.name.removesuffix(".ndjson.gz")]
        for batch in pl.scan_ndjson(path, schema=schema).collect_batches(chunk_size=500_000):
            rows += batch.height
    return rows


SCANS = {"mimic4": scan_mimic4, "omop": scan_omop, "meds": scan_meds, "fhir": scan_fhir}
#: The most that a prepare may take, in bare scans.
AIMS = {"mimic4": 1.5, "omop": 2.0, "meds": 2.0, "fhir": 3.0}


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


def in_form(form: str, hospital: Path) -> Path:
    """Return the hospital in a form, written unless it is there."""
    if form == "mimic4":
        return hospital
    from patients_like_me.records.forms.form import find_form

    folder = hospital.with_name(f"{hospital.name}-{form}")
    if not folder.exists():
        print(f"writing the hospital in the form {form} (once) ...", flush=True)
        find_form(form).write(hospital, folder)
    return folder


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the size, under 50 seconds")
    parser.add_argument("--folder", type=Path, help="where the hospitals are kept; default: the temporary folder")
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds")
    parser.add_argument(
        "--form", choices=sorted(SCANS), default="mimic4", help="the form in which the hospital is read"
    )
    parser.add_argument("--scan-only", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.scan_only:
        print(SCANS[arguments.form](arguments.scan_only))
        return
    print(__doc__)
    patients = QUICK if arguments.quick else FULL
    keep = arguments.folder or Path(tempfile.gettempdir()) / "plm-benchmarks"
    hospital = keep / f"hospital-{patients}"
    write_hospital(hospital, patients)
    form = arguments.form
    source = in_form(form, hospital)
    scans, prepares, peaks = [], [], []
    with tempfile.TemporaryDirectory(dir=keep) as scratch:
        for number in range(arguments.rounds):
            scan, scan_peak = run_measured([sys.executable, __file__, "--form", form, "--scan-only", str(source)])
            command = [sys.executable, "-m", "patients_like_me", "prepare", form, str(source)]
            seconds, peak = run_measured(
                [*command, "--out", f"{scratch}/cohort-{number}"], PLM_CODES=f"{scratch}/codes"
            )
            print(f"bare scan {scan:.2f} s ({scan_peak:.2f} GiB), prepare {seconds:.2f} s ({peak:.2f} GiB)", flush=True)
            scans.append(scan)
            prepares.append(seconds)
            peaks.append(peak)
    ratio = statistics.median(prepares) / statistics.median(scans)
    rows = SCANS[form](source)
    print(
        f"{rows:,} event rows; ratio {ratio:.2f} (aim at most {AIMS[form]}), peak {max(peaks):.2f} GiB (aim under 4); "
        f"{machine()}"
    )
    native = form == "mimic4"
    close_with(
        {
            "peak_gib" if native else f"{form}_peak_gib": round(max(peaks), 3),
            "ratio_to_bare_scan" if native else f"{form}_ratio": round(ratio, 3),
            "rows": rows,
            "seconds": round(statistics.median(prepares), 2),
            "bare_scan_seconds": round(statistics.median(scans), 2),
            "patients": patients,
        }
    )


if __name__ == "__main__":
    main()
