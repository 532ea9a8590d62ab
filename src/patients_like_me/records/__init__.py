"""Records: one reader per source, and the cohort folder that all of them write."""
