"""The sections of the report on a run, one file each."""
