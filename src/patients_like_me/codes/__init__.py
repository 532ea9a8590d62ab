"""Codes: what each code system's codes become (CCS, ATC-3), the tables behind that, and how much they covered."""
