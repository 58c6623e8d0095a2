"""The command menu of a bot: whose commands people are shown.

A bot has one menu, which all its agents share, so no gateway changes it without the operator's
word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from accord.kernel import canonical
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.settings import CommandSettings

OPERATOR: Final = ""
"""Stands for the operator's own commands among instances; it sorts before every name."""
_MOST_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CommandMenu:
    """What the operator has chosen: own commands, and the instances whose commands are added."""

    own: Sequence[Any] = ()
    instances: frozenset[str] = frozenset()

    @classmethod
    def load(cls, settings: CommandSettings) -> Self:
        """Read the chosen file.

        Raises:
            RelayError: It cannot be read, or holds no list of objects.
        """
        if settings.commands == "off":
            return cls()
        own = _read(settings.commands_file) if settings.commands_file else ()
        named = settings.commands_from if settings.commands == "union" else ()
        return cls(own, frozenset(named))

    def admits(self, instance: str) -> bool:
        """Whether the commands of an instance's gateway are shown."""
        return instance in self.instances


def _read(file: str) -> list[Any]:
    try:
        with Path(file).expanduser().open("rb") as opened:
            found = canonical.decode(opened.read(_MOST_BYTES + 1), max_bytes=_MOST_BYTES)
    except OSError as error:
        raise _bad(f"the file of commands cannot be read ({error.strerror})") from None
    except canonical.CanonicalError as error:
        raise _bad(f"the file of commands is not strict JSON: {error.what}") from None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise _bad("the file of commands should hold a list of objects")
    return found


def _bad(what: str) -> RelayError:
    return RelayError(
        Code.BAD_REQUEST,
        what,
        where="commands_file",
        mend='write a list such as [{"name": "ask", "description": "Ask"}]',
    )
