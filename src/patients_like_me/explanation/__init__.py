"""Which earlier patients a prediction leans on: references, their importance, and whether that can be believed."""
