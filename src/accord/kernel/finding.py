"""Findings: the reasons of decisions, shown alike in logs, journal, console, CLI and Spark."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason: the rule, the place and a sentence."""

    rule: str  # the stable id of the rule
    pointer: str  # a JSON Pointer (RFC 6901) into the document; empty for the whole of it
    message: str

    def __str__(self) -> str:
        return f"{self.pointer or '(whole document)'}: {self.message} [{self.rule}]"


def pointer(*path: str | int) -> str:
    """Write member names and indices as a JSON Pointer."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
