"""Who may come in: one-time links and the sessions that they open.

Owns the files of both, below `console/` in the home: one small file for each, named by the SHA-256
of its secret, so that nothing at rest opens anything. Looking a secret up by its digest tells
nothing by its time. A file's content is when it ends, its modification time when it was last used.
Any process may make a link; whoever removes its file has redeemed it.
"""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accord.console.errors import ConsoleError
from accord.kernel.clock import Clock

LINK_SECONDS: Final = 900.0
_MOST: Final = 100
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_CONTENT: Final = re.compile(rb"[0-9]{1,12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that is logged in.

    Attributes:
        id: Names it, and opens nothing.
        csrf: What every form of it must carry.
        ends_at: When it ends whatever happens.
    """

    id: str
    csrf: str
    ends_at: float


class Tickets:
    """The links and sessions of one home.

    Args:
        folder: Where they are kept.
        clock: The time.
        session_seconds: How long a session lasts.
        idle_seconds: How long it may lie idle.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        session_seconds: float = 43_200.0,
        idle_seconds: float = 7_200.0,
    ) -> None:
        self._links = folder / "links"
        self._sessions = folder / "sessions"
        self._clock = clock
        self._session_seconds = session_seconds
        self._idle_seconds = idle_seconds

    def link(self) -> str:
        """Make the secret of a link that opens one session, soon.

        Raises:
            ConsoleError: It cannot be kept.
        """
        return self._make(self._links, LINK_SECONDS)

    def redeem(self, link: str) -> str:
        """Trade the secret of a link for that of a session.

        Raises:
            ConsoleError: The link was used, has run out, or never was one.
        """
        file = _file(self._links, link)
        if file is None or self._ends_at(file, LINK_SECONDS) is None or not _removed(file):
            raise ConsoleError(
                "this link was used already, or has run out",
                mend="get a new one with `accord console link`",
                status=403,
            )
        return self._make(self._sessions, self._session_seconds)

    def session(self, secret: str, *, in_use: bool = True) -> Session | None:
        """The session that a browser shows, if it still stands.

        Args:
            secret: What the browser shows.
            in_use: Whether somebody uses it now, or only a page looks for news by itself.
        """
        file = _file(self._sessions, secret)
        ends_at = None if file is None else self._ends_at(file, self._idle_seconds)
        if file is None or ends_at is None:
            return None
        if in_use:
            now = self._clock.now()
            with contextlib.suppress(OSError):
                os.utime(file, (now, now))
        csrf = hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()
        return Session(file.name, csrf, ends_at)

    def end(self, session: Session) -> None:
        """Log a session out."""
        _removed(self._sessions / session.id)

    def stands(self, session: Session) -> bool:
        """Whether a session that was found is still open; asking is no use of it."""
        return self._ends_at(self._sessions / session.id, self._idle_seconds) is not None

    def _make(self, folder: Path, seconds: float) -> str:
        secret = secrets.token_urlsafe(32)
        now = self._clock.now()
        try:
            for each in (folder.parent, folder):
                each.mkdir(mode=0o700, exist_ok=True)
            self._tidy(folder, seconds)
            file = folder / _digest(secret)
            draft = folder / f".{secrets.token_hex(8)}"
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(b"%d" % (now + seconds))
            os.utime(draft, (now, now))
            draft.rename(file)
        except OSError as error:
            raise ConsoleError(
                f"nobody can log in: this cannot be written ({error.strerror})",
                where=str(folder),
                mend="let this user write there, and see that the disk has room",
                status=503,
            ) from error
        return secret

    def _tidy(self, folder: Path, seconds: float) -> None:
        """Forget what has ended, and the longest unused beyond a number that nobody needs."""
        idle = self._idle_seconds if folder == self._sessions else seconds
        kept: list[tuple[float, Path]] = []
        # Not the drafts, which another process may just be writing.
        for file in folder.glob("[0-9a-f]*"):
            if self._ends_at(file, idle) is None:
                _removed(file)
            else:
                with contextlib.suppress(FileNotFoundError):
                    kept.append((file.stat().st_mtime, file))
        for _, file in sorted(kept)[: max(0, len(kept) - _MOST + 1)]:
            _removed(file)

    def _ends_at(self, file: Path, idle: float) -> float | None:
        """When a ticket ends; None when it has."""
        try:
            content = file.read_bytes()[:32]
            used_at = file.stat().st_mtime
        except OSError:
            return None
        now = self._clock.now()
        if not _CONTENT.fullmatch(content) or not (now < int(content) and now < used_at + idle):
            return None
        return float(int(content))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _file(folder: Path, secret: str) -> Path | None:
    return folder / _digest(secret) if _SECRET.fullmatch(secret) else None


def _removed(file: Path) -> bool:
    """Remove a file; whether it was this call that did."""
    try:
        file.unlink()
    except OSError:
        return False
    return True
