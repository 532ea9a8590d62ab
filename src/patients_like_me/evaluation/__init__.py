"""Evaluation: measures with their definitions, intervals over patients, calibration, subgroups, comparisons."""
