"""Training: teacher forcing, adaptation through the filter, and the one loop they share."""
