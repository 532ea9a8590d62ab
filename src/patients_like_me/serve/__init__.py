"""A local page and API for one patient at a time: what a run predicts, on which earlier patients it leans, and what if.

:mod:`.app` puts the application together, :mod:`.guard` decides who may ask, :mod:`.state` answers.
"""
