"""Measure ``plm prepare`` on a synthetic hospital of full MIMIC-IV size.

A hospital of about 180,000 patients, 430,000 admissions, 4.7 million diagnosis rows and 15 million prescription rows
is written as gzipped CSV (once; kept in the cache folder for the next run). Then, alternating in one run and each in a
process of its own:

- a *bare scan*: polars reads the same columns of the same files and does nothing with them;
- ``plm prepare``: the whole way to a cohort folder, with hashes, code maps, filters and Parquet.

Figures: ``peak_gib`` (largest memory of any prepare, aim under 4), ``ratio_to_bare_scan`` (median time of prepare
over median time of the bare scan, aim at most 1.5), ``rows`` (event rows read), and the seconds of each.
With ``--form`` the same hospital is written in that form and read from it; the figures are then ``omop_ratio`` and
``omop_peak_gib`` (aims 2 and 4; Parquet), ``meds_ratio`` and ``meds_peak_gib`` (aims 2 and 4), ``fhir_ratio`` and
``fhir_peak_gib`` (aims 3 and 4).

    python benchmarks/ingest.py [--quick] [--form omop|meds|fhir] [--folder FOLDER] [--rounds 3]
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
    parser.add_argument("--folder", type=Path, help="where the hospitals are kept; default: the temporary folder")
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds")
    parser.add_argument("--form", choices=sorted(SCANS), default="mimic4", help="the form in which it is read")
    parser.add_argument("--scan-only", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    form = arguments.form
    if arguments.scan_only:
        print(SCANS[form](arguments.scan_only))
        return
    print(__doc__)
    patients = QUICK if arguments.quick else FULL
    keep = arguments.folder or Path(tempfile.gettempdir()) / "plm-benchmarks"
    hospital = keep / f"hospital-{patients}"
    write_hospital(hospital, patients)
    if form != "mimic4":
        source = keep / f"{form}-{patients}"
        write_form(form, hospital, source)
        hospital = source
    scans, prepares, peaks = [], [], []
    with tempfile.TemporaryDirectory(dir=keep) as scratch:
        for number in range(arguments.rounds):
            scan, scan_peak = run_measured([sys.executable, __file__, "--form", form, "--scan-only", str(hospital)])
            command = [sys.executable, "-m", "patients_like_me", "prepare", form, str(hospital)]
            seconds, peak = run_measured(
                [*command, "--out", f"{scratch}/cohort-{number}"], PLM_CODES=f"{scratch}/codes"
            )
            print(f"bare scan {scan:.2f} s ({scan_peak:.2f} GiB), prepare {seconds:.2f} s ({peak:.2f} GiB)", flush=True)
            scans.append(scan)
            prepares.append(seconds)
            peaks.append(peak)
    ratio = statistics.median(prepares) / statistics.median(scans)
    rows = SCANS[form](hospital)
    aim = AIMS[form]
    print(f"{rows:,} rows; ratio {ratio:.2f} (aim at most {aim}), peak {max(peaks):.2f} GiB (aim under 4); {machine()}")
    names = ("ratio_to_bare_scan", "peak_gib") if form == "mimic4" else (f"{form}_ratio", f"{form}_peak_gib")
    close_with(
        {
            names[1]: round(max(peaks), 3),
            names[0]: round(ratio, 3),
            "rows": rows,
            "seconds": round(statistics.median(prepares), 2),
            "bare_scan_seconds": round(statistics.median(scans), 2),
            "patients": patients,
        }
    )


if __name__ == "__main__":
    main()
