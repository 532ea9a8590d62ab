"""Patients-like-me: clinical prediction that shows which earlier patients it leans on.

The rooms follow the way of the data: ``records`` -> ``codes`` -> ``tasks`` -> ``graph`` -> ``model`` ->
``training`` -> ``evaluation`` -> ``explanation`` -> ``report``. Each room reads only from rooms before it.
"""

from __future__ import annotations

__version__ = "0.1.0"
