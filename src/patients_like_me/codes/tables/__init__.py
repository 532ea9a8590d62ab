"""Code tables that a user can add, one file per family; see :mod:`patients_like_me.codes.code_tables`."""
