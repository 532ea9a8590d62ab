"""The methods that score references, one file each: a question in, a score per edge out.

A file here with the constant ``METHOD`` is a method (or a tuple of methods); another installed package adds its own
through the entry-point group ``patients_like_me.explanation_methods``.
"""

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.methods.registry import Method, all_methods, magnitude, method_named, methods_named

__all__ = ["Method", "Question", "all_methods", "magnitude", "method_named", "methods_named"]
