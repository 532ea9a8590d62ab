"""Tasks: what is predicted, from what, for whom; splits, prompts and the leakage audit."""
