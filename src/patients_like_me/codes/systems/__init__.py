"""The code systems, one file each; see ``codes/registry.py``."""
