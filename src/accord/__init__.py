"""Accord: agents, machines and people working together under agreements that are data."""

__version__ = "0.2.0"
