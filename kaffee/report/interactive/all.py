"""Interactive figures of a report: described here as data, drawn in the page by scripts of its own."""
