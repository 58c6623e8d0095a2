"""Errors of the station itself."""

from collections.abc import Sequence
from typing import Self

from accord.kernel.errors import AccordError


class StationError(AccordError):
    """The station cannot be started or inspected."""


class HomeHeldError(StationError):
    """Another process holds the home."""


class SettingsError(StationError):
    """One or more settings are wrong; its text has one line for each."""

    also: tuple["SettingsError", ...] = ()

    @classmethod
    def of(cls, findings: Sequence["SettingsError"]) -> Self:
        """Join several errors into one."""
        first, *others = findings
        joined = cls(first.what, where=first.where, mend=first.mend)
        joined.also = tuple(others)
        return joined

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.also)])
