"""Speed of kaffee beside its peers, measured in one run: `python -m benchmarks.speed`."""
