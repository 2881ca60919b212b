"""Training: teacher forcing, adaptation, and the one loop under both."""
