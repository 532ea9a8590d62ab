"""The readers, one file for each source; see ``records/registry.py``."""
