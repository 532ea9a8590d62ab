"""Plain baselines: what a user would try first, on the same inputs, splits and labels as any run."""
