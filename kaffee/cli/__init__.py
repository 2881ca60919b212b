"""The command line. Heavy imports stay inside commands, so that `--help` answers at once."""
