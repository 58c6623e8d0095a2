"""What this node signed last: a file beside the store that a restored store cannot take back.

Two events with one number in an author's chain are an equivocation, and nobody can mend it. So
whatever is signed stands in this file, on disk, before it is stored. A store that knows less than
the file was interrupted, when what is missing is in the file, or restored from a backup, when more
is missing. A folder that was restored together with its store knows no better than the store;
whoever restores it leaves a note in it. Owns both files; never decides what is signed.
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from accord.community.envelope import MAX_BYTES, Event, parse
from accord.community.errors import Code, CommunityError
from accord.kernel.files import sync_folder, write_private

_LARGEST: Final = 64 * MAX_BYTES


class Note:
    """Says of a community's folder that it was restored, until another member was heard."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "restored"

    @property
    def stands(self) -> bool:
        """Whether the folder was restored and nobody was heard since."""
        return self._path.exists()

    def leave(self) -> None:
        """Note that the folder was restored; it need not know for how long it was away."""
        if not self.stands:
            write_private(self._path, b"")
            sync_folder(self._path.parent)

    def remove(self) -> None:
        """Another member was heard."""
        self._path.unlink(missing_ok=True)


class Marker:
    """The events that were signed last, all of one author, in the order of its chain."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, events: Sequence[Event]) -> None:
        """Bring them to the disk, in the place of those before.

        Raises:
            CommunityError: They cannot be written; they must not be stored then.
        """
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            try:
                write_private(draft, b"".join(event.encode() + b"\n" for event in events))
                draft.replace(self._path)
            finally:
                draft.unlink(missing_ok=True)
            sync_folder(self._path.parent)
        except OSError as error:
            raise self._unusable("cannot be written", error) from error

    def read(self) -> list[Event]:
        """What was signed last; empty where nothing ever was.

        Raises:
            CommunityError: The file cannot be read, or is not what `write` wrote.
        """
        try:
            with self._path.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable("cannot be read", error) from error
        try:
            return [parse(line) for line in data.splitlines()]
        except CommunityError as error:
            raise CommunityError(
                Code.INTERNAL_ERROR,
                f"the record of what this node signed last is damaged ({error.what})",
                where=str(self._path),
                mend="remove it and open the log as recovering",
            ) from None

    def _unusable(self, what: str, error: OSError) -> CommunityError:
        return CommunityError(
            Code.INTERNAL_ERROR,
            f"the record of what this node signed last {what} ({os.strerror(error.errno or 0)})",
            where=str(self._path),
            mend="let this user write to the folder, and see that the disk has space",
        )
