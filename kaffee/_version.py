"""The version, read by the build and by `kaffee --version`."""

__version__ = "0.1.0"
