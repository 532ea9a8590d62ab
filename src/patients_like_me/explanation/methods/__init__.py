"""The methods that score references, under one interface: a question in, a score per edge out."""

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.methods.registry import METHODS, Method, method_named, methods_named

__all__ = ["METHODS", "Method", "Question", "method_named", "methods_named"]
