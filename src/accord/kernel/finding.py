"""A finding: what a rule has to say about one place in a document, or in a store.

Decisions explain themselves in findings, and logs, journal, console, command line and Spark show
the same ones.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason, with the rule that gives it and the place it speaks of.

    Attributes:
        rule: The stable id of the rule.
        pointer: A JSON Pointer (RFC 6901) into the document; empty for the whole of it.
        message: A sentence for a person.
    """

    rule: str
    pointer: str
    message: str

    def __str__(self) -> str:
        return f"{self.pointer or '(whole document)'}: {self.message} [{self.rule}]"


def pointer(*path: str | int) -> str:
    """Write member names and indices as a JSON Pointer."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
