"""What goes wrong on one machine before any plane is at fault. Nothing else lives here."""

from collections.abc import Sequence
from typing import Self

from accord.kernel.errors import AccordError


class StationError(AccordError):
    """The station cannot be started or cannot be looked at."""


class HomeHeldError(StationError):
    """Another process holds the home."""


class SettingsError(StationError):
    """One or more settings are wrong; its text has one line for each."""

    also: tuple["SettingsError", ...] = ()

    @classmethod
    def of(cls, findings: Sequence["SettingsError"]) -> Self:
        """Join what was found into one error that can be raised."""
        first, *others = findings
        joined = cls(first.what, where=first.where, mend=first.mend)
        joined.also = tuple(others)
        return joined

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.also)])
