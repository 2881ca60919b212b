"""Models on disk: safetensors and JSON."""
