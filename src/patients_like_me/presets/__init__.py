"""Named sets of settings: ``paper``, ``clinical``, ``recommended`` and ``quick``, as JSON."""
