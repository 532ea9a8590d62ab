"""What a person opens: pictures and pages, self-contained and readable in grey."""
