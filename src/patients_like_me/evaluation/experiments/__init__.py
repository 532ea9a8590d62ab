"""The paper's experiments: each a few lines of data, one runner for all, tables and figures in the paper's layout."""
