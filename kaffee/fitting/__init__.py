"""From a recording to a run: settings, defaults from the data, the pipeline, the run folder."""
