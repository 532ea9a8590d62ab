"""Named sets of settings: ``paper``, ``clinical`` and ``quick``, as JSON."""
