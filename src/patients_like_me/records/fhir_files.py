"""The files of a FHIR R4 export: NDJSON of one resource type each, and JSON bundles, opened as tables by type.

Only the elements that are read are parsed into columns, piece by piece, so memory does not grow with the file.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable
from patients_like_me.records.file_errors import broken_gzip
from patients_like_me.records.file_scans import scan_ndjson
from patients_like_me.records.source_files import Part, SourceFolder, SourceTable
from patients_like_me.records.table_files import NDJSON, not_a_file, notes_on_missing_parts

_TEXT: Final = pl.String()
_PERIOD: Final = pl.Struct({"start": _TEXT, "end": _TEXT})
_REFERENCE: Final = pl.Struct({"reference": _TEXT})
_CONCEPT: Final = pl.Struct(
    {"coding": pl.List(pl.Struct({"system": _TEXT, "code": _TEXT, "display": _TEXT})), "text": _TEXT}
)
_IDENTIFIER: Final = pl.List(pl.Struct({"system": _TEXT, "value": _TEXT}))
_DRUG: Final = {
    "subject": _REFERENCE,
    "status": _TEXT,
    "medicationReference": _REFERENCE,
    "medicationCodeableConcept": _CONCEPT,
    "contained": pl.List(pl.Struct({"resourceType": _TEXT, "id": _TEXT, "code": _CONCEPT})),
}
_ELEMENTS: Final[dict[str, dict[str, pl.DataType]]] = {
    "Patient": {
        "id": _TEXT,
        "identifier": _IDENTIFIER,
        "gender": _TEXT,
        "birthDate": _TEXT,
        "deceasedDateTime": _TEXT,
        "deceasedBoolean": pl.Boolean(),
        "maritalStatus": _CONCEPT,
        "communication": pl.List(pl.Struct({"language": _CONCEPT})),
        "extension": pl.List(
            pl.Struct({"url": _TEXT, "extension": pl.List(pl.Struct({"url": _TEXT, "valueString": _TEXT}))})
        ),
    },
    "Encounter": {
        "id": _TEXT,
        "identifier": _IDENTIFIER,
        "status": _TEXT,
        "class": pl.Struct({"code": _TEXT}),
        "subject": _REFERENCE,
        "partOf": _REFERENCE,
        "period": _PERIOD,
        "hospitalization": pl.Struct({"dischargeDisposition": _CONCEPT}),
    },
    "Condition": {
        "subject": _REFERENCE,
        "code": _CONCEPT,
        "encounter": _REFERENCE,
        "recordedDate": _TEXT,
        "verificationStatus": _CONCEPT,
    },
    "Procedure": {
        "subject": _REFERENCE,
        "code": _CONCEPT,
        "encounter": _REFERENCE,
        "status": _TEXT,
        "performedDateTime": _TEXT,
        "performedPeriod": _PERIOD,
    },
    "MedicationRequest": {
        **_DRUG,
        "doNotPerform": pl.Boolean(),
        "encounter": _REFERENCE,
        "authoredOn": _TEXT,
        "dispenseRequest": pl.Struct({"validityPeriod": _PERIOD}),
    },
    "MedicationAdministration": {
        **_DRUG,
        "context": _REFERENCE,
        "effectiveDateTime": _TEXT,
        "effectivePeriod": _PERIOD,
    },
    "MedicationStatement": {
        **_DRUG,
        "context": _REFERENCE,
        "dateAsserted": _TEXT,
        "effectiveDateTime": _TEXT,
        "effectivePeriod": _PERIOD,
    },
    "Medication": {
        "id": _TEXT,
        "code": _CONCEPT,
        "identifier": _IDENTIFIER,
        "ingredient": pl.List(pl.Struct({"itemReference": _REFERENCE, "itemCodeableConcept": _CONCEPT})),
    },
}
#: The elements that are read of each resource.
RESOURCES: Final = {kind: {"resourceType": _TEXT, **elements} for kind, elements in _ELEMENTS.items()}
#: Bundles are parsed into columns whenever this much of their text has been gathered.
_PIECE: Final = 1 << 25
_DEEPEST_LEVEL: Final = 4
_FEW_BUNDLES: Final = 50


@dataclass
class FhirFiles:
    """The files of an export by resource type; ``bundles`` are those that hold several types."""

    lines: dict[str, list[Path]] = field(default_factory=dict)
    bundles: list[Path] = field(default_factory=list)

    def tables(self, source: SourceFolder) -> dict[str, SourceTable]:
        """Open every resource type that is read."""
        parts: dict[str, list[Part]] = {}
        for kind, columns in RESOURCES.items():
            source.notes += notes_on_missing_parts(self.lines.get(kind, []))
            for path in self.lines.get(kind, []):
                source.used.append(path)
                parts.setdefault(kind, []).append(Part(path, scan_ndjson(path, columns), 1))
        source.used.extend(self.bundles)
        for kind, found in _parts_of_bundles(self.bundles).items():
            parts.setdefault(kind, []).extend(found)
        return {kind: SourceTable(tuple(found)) for kind, found in parts.items()}


def fhir_files(source: SourceFolder) -> FhirFiles:
    """Find the files of an export and tell their types by their first line; another version of FHIR is refused."""
    found = FhirFiles()
    for folder in source.folders:
        for path in sorted(folder.rglob("*")):
            name = path.name.lower()
            too_deep = len(path.relative_to(folder).parts) > _DEEPEST_LEVEL
            if name.startswith(".") or too_deep or (path.parent / "cohort.json").is_file():
                continue
            if not path.is_file():
                if name.endswith((*NDJSON, ".json")):
                    raise not_a_file(path)
                continue
            if name.endswith(".gz") and path.with_suffix("").is_file():
                raise PlmError(
                    f"'{path.parent}' holds '{path.stem}' and the same gzipped",
                    remedy="keep one of them: only you know which is right",
                )
            if name.endswith(NDJSON):
                if (first := _first_resource(path)) is not None:
                    found.lines.setdefault(_type_of(first, path, 1), []).append(path)
            elif name.endswith(".json") and name not in ("synthetic.json", "manifest.json"):
                found.bundles.append(path)
    return found


def looks_like_fhir(source: SourceFolder) -> bool:
    """Tell whether a folder holds patients and encounters of FHIR as NDJSON, or bundles."""
    try:
        found = fhir_files(source)
        return {"Patient", "Encounter"} <= set(found.lines) or any(_is_bundle(path) for path in found.bundles[:1])
    except PlmError:
        return False


def _is_bundle(path: Path) -> bool:
    with path.open("rb") as stream:
        return b'"resourceType"' in stream.read(4096)


def _first_resource(path: Path) -> Any:
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            for line in stream:
                if line.startswith(codecs.BOM_UTF8):
                    raise PlmError(f"'{path}' begins with a byte order mark", remedy="save it as UTF-8 without one")
                if line.strip():
                    return json.loads(line)
    except (OSError, EOFError, zlib.error):
        raise broken_gzip(path) from None
    except (ValueError, RecursionError):
        raise PlmError(f"'{path}', row 1: not a JSON object", remedy="correct or remove that row") from None
    return None


def _type_of(resource: Any, path: Path, row: int) -> str:
    """Return the type of a resource; anything else, or one of another version of FHIR, is refused."""
    kind = resource.get("resourceType") if isinstance(resource, dict) else None
    if not isinstance(kind, str):
        raise PlmError(f"'{path}', row {row}: no FHIR resource (it has no resourceType)", remedy="remove the file")
    other = None
    if kind == "Encounter":
        if isinstance(resource.get("class"), list) or "actualPeriod" in resource:
            other = "R5"
        elif isinstance(resource.get("class"), str):
            other = "DSTU2"
    elif kind in ("MedicationUsage", "MedicationOrder"):
        other = "R5" if kind == "MedicationUsage" else "DSTU2"
    elif kind in ("MedicationRequest", "MedicationAdministration") and "medication" in resource:
        other = "R5"
    if other is not None:
        raise PlmError(
            f"'{path}', row {row}: this {kind} has the form of FHIR {other}, and R4 is read", remedy="export it as R4"
        )
    return kind


def _parts_of_bundles(paths: list[Path]) -> dict[str, list[Part]]:
    """Read bundles one after another; of each resource only the elements stay that are read.

    Messages name a bundle and the place of a resource among those of its type, or the folder where bundles are many.
    """
    pending: dict[str, list[tuple[Path, str]]] = {}
    frames: dict[str, list[pl.DataFrame]] = {}
    counts: dict[str, dict[Path, int]] = {}
    size = 0

    def parse() -> None:
        for kind, lines in pending.items():
            frames.setdefault(kind, []).append(_parsed(kind, lines))
        pending.clear()

    for path in paths:
        for resource in _resources_of(path):
            if (kind := _type_of(resource, path, 1)) in RESOURCES:
                wanted = {name: resource[name] for name in RESOURCES[kind] if name in resource}
                line = json.dumps(wanted)
                pending.setdefault(kind, []).append((path, line))
                of_kind = counts.setdefault(kind, {})
                of_kind[path] = of_kind.get(path, 0) + 1
                size += len(line)
        if size > _PIECE:
            parse()
            size = 0
    parse()
    parts = {}
    for kind, found in frames.items():
        whole, first = pl.concat(found), 0
        parts[kind] = [Part(paths[0].parent, whole.lazy(), 1)]
        if len(paths) <= _FEW_BUNDLES:
            parts[kind].clear()
            for path, rows in counts[kind].items():
                parts[kind].append(Part(path, whole[first : first + rows].lazy(), 1))
                first += rows
    return parts


def _parsed(kind: str, lines: list[tuple[Path, str]]) -> pl.DataFrame:
    """Parse resources of bundles into columns."""
    try:
        return pl.read_ndjson(io.BytesIO("\n".join(line for _, line in lines).encode()), schema=RESOURCES[kind])
    except pl.exceptions.PolarsError:
        if len(lines) > 1:
            # One of them is wrong: the halves tell which.
            half = len(lines) // 2
            return pl.concat([_parsed(kind, lines[:half]), _parsed(kind, lines[half:])])
        raise PlmError(
            f"'{lines[0][0]}': a resource of the type {kind} has not the form of FHIR R4", remedy="export it as R4"
        ) from None


def _resources_of(path: Path) -> Iterator[Any]:
    """Yield the resources of a bundle, each under the id by which others refer to it; a lone resource is one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise PlmError(
            f"'{path}', line {error.lineno}: not JSON ({printable(error.msg)})", remedy="export it again"
        ) from None
    except UnicodeDecodeError:
        raise PlmError(f"'{path}' is not UTF-8 text", remedy="export it again") from None
    except RecursionError:
        raise PlmError(f"'{path}' is nested too deeply", remedy="export it again") from None
    if not isinstance(content, dict) or content.get("resourceType") != "Bundle":
        yield content
        return
    entries = content.get("entry") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PlmError(f"'{path}': the entries of this Bundle are not a list of objects", remedy="export it again")
    for entry in entries:
        resource = entry.get("resource")
        if not isinstance(resource, dict):
            continue
        url = entry.get("fullUrl")
        if isinstance(url, str) and url.startswith("urn:uuid:"):
            resource = {**resource, "id": url.removeprefix("urn:uuid:")}
        yield resource
