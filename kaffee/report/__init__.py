"""Pages and figures, drawn from stored results."""
