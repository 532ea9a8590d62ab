"""An attack on the whole: drawn tables, settings, kills, damaged bytes, planted leaks, injections.

Each module draws new cases from a seed. ``test_attack.py`` runs a small fixed number of them with every test; ``make
attack`` (``python -m attack``) goes on for hours and ends with one line of counts.
"""
