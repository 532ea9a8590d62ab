"""Dialects: what the codes of a MEDS or FHIR source mean, as small checked JSON files; some are shipped here."""
