"""Run folders: the typed record of a run, its predictions, lock, resume and model card. Nothing here needs torch."""
