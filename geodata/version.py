"""The release."""

__version__ = "0.4.0"
