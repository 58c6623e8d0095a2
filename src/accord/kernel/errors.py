"""The base class of every error that Accord raises on purpose, and findings.

Findings are the reasons of decisions, shown alike in logs, journal, console, CLI and Spark.
"""

from dataclasses import dataclass


class AccordError(Exception):
    """An error for people: what is wrong, where, and how to fix it.

    Args:
        what: A clause without a final full stop, such as "the port 7070 is in use".
        where: The file, setting, pointer or position concerned.
        mend: A clause that says what to do about it.
    """

    def __init__(self, what: str, *, where: str | None = None, mend: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        prefix = f"{self.where}: " if self.where else ""
        suffix = f"; {self.mend}" if self.mend else ""
        return f"{prefix}{self.what}{suffix}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason: the rule, the place and a sentence."""

    rule: str  # the stable id of the rule
    pointer: str  # a JSON Pointer (RFC 6901) into the document; empty for the whole of it
    message: str

    def __str__(self) -> str:
        return f"{self.pointer or '(whole document)'}: {self.message} [{self.rule}]"
