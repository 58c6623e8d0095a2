"""Login: one-time links, sessions, cookies, and the protection of forms.

Links and sessions are small files below `console/` in the home, named by the SHA-256 of their
secret, so that the files alone open nothing. A request must be for one of the console's own names,
and a change must come from its own page with the session's token.
"""

import contextlib
import hashlib
import hmac
import math
import os
import re
import secrets
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from accord.console.messages import tr
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.web.origin import is_own_page


class ConsoleError(AccordError):
    """A page cannot do what was asked; `status` is the HTTP status."""

    def __init__(
        self, what: str, *, where: str | None = None, mend: str | None = None, status: int = 400
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.status = status


def not_up(what: str, mend: str = "") -> ConsoleError:
    """The error of a page that needs a part of the station which does not run now."""
    mend = mend or tr("wait a moment; Home shows the state of its plane")
    return ConsoleError(tr("{what} is not up", what=what), mend=mend, status=503)


class Role(IntEnum):
    """What a user may do; each may do what those before it may."""

    READER = 1
    """Look at everything, and ask questions."""
    OPERATOR = 2
    """Act on the pages of the planes."""
    OWNER = 3
    """Change users, sessions and settings, and make backups."""


LINK_SECONDS: Final = 900.0
_MOST: Final = 100
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
# When it ends, and the user whose it is.
_CONTENT: Final = re.compile(rb"([0-9]{1,12})(?: ([a-z0-9._-]{1,32}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A browser that is logged in.

    Attributes:
        id: Names it, but does not authenticate.
        csrf: The token of its forms.
        ends_at: When it ends in any case.
        user: Whose it is; empty for whoever got the link on the machine, who owns the station.
    """

    id: str
    csrf: str
    ends_at: float
    user: str = ""
    role: Role = Role.OWNER


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session as operators see it; times in seconds since the epoch."""

    id: str
    used_at: float
    ends_at: float
    user: str = ""


class Tickets:
    """The links and sessions of one home."""

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

    def link(self, user: str = "") -> str:
        """Create the secret of a one-time link; `ConsoleError` if it cannot be stored."""
        return self._make(self._links, LINK_SECONDS, user)

    def redeem(self, link: str) -> str:
        """Exchange the secret of a link for that of a session, or raise `ConsoleError`."""
        file = _ticket_file(self._links, link)
        ticket = None if file is None else self._read(file, LINK_SECONDS)
        if file is None or ticket is None or not _remove(file):
            raise ConsoleError(
                tr("this link was used already, or has run out"),
                mend=tr("get a new one with `accord console link`"),
                status=403,
            )
        return self._make(self._sessions, self._session_seconds, ticket[1])

    def session(self, secret: str, *, in_use: bool = True) -> ConsoleSession | None:
        """Return the session of a cookie, if it is valid; `in_use` renews its idle time."""
        file = _ticket_file(self._sessions, secret)
        ticket = None if file is None else self._read(file, self._idle_seconds)
        if file is None or ticket is None:
            return None
        if in_use:
            now = self._clock.now()
            with contextlib.suppress(OSError):
                os.utime(file, (now, now))
        csrf = hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()
        return ConsoleSession(file.name, csrf, *ticket)

    def sessions(self) -> list[ListedSession]:
        """The valid sessions, the most recently used first."""
        found = []
        for file in self._sessions.glob("[0-9a-f]*"):
            ticket = self._read(file, self._idle_seconds)
            with contextlib.suppress(OSError):
                if ticket is not None:
                    found.append(ListedSession(file.name, file.stat().st_mtime, *ticket))
        return sorted(found, key=lambda each: -each.used_at)

    def end_other(self, session_id: str) -> None:
        """End a session by its id; `ConsoleError` if there is none."""
        wanted = [each.id for each in self.sessions() if each.id == session_id]
        if not wanted or not _remove(self._sessions / wanted[0]):
            raise ConsoleError(
                tr("there is no such session"), mend=tr("load the page again"), status=404
            )

    def end_all(self, user: str) -> None:
        """End the sessions of a user, and the links that lead to new ones."""
        for folder in (self._sessions, self._links):
            for file in folder.glob("[0-9a-f]*"):
                ticket = self._read(file, math.inf)
                if ticket is not None and ticket[1] == user:
                    _remove(file)

    def end(self, session: ConsoleSession) -> None:
        """End a session."""
        _remove(self._sessions / session.id)

    def is_valid(self, session: ConsoleSession) -> bool:
        """Whether a session is still valid, without renewing its idle time."""
        return self._read(self._sessions / session.id, self._idle_seconds) is not None

    def _make(self, folder: Path, seconds: float, user: str) -> str:
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
                opened.write(f"{int(now + seconds)} {user}".rstrip().encode())
            os.utime(draft, (now, now))
            draft.rename(file)
        except OSError as error:
            raise ConsoleError(
                tr(
                    "nobody can log in: this cannot be written ({strerror})",
                    strerror=error.strerror,
                ),
                where=str(folder),
                mend=tr("let this user write there, and see that the disk has room"),
                status=503,
            ) from error
        return secret

    def _tidy(self, folder: Path, seconds: float) -> None:
        """Remove expired tickets, and the least recently used ones beyond a limit."""
        idle = self._idle_seconds if folder == self._sessions else seconds
        kept: list[tuple[float, Path]] = []
        # Not the drafts, which another process may be writing.
        for file in folder.glob("[0-9a-f]*"):
            if self._read(file, idle) is None:
                _remove(file)
            else:
                with contextlib.suppress(FileNotFoundError):
                    kept.append((file.stat().st_mtime, file))
        for _, file in sorted(kept)[: max(0, len(kept) - _MOST + 1)]:
            _remove(file)

    def _read(self, file: Path, idle: float) -> tuple[float, str] | None:
        """Return when a ticket ends and whose it is; None if it has ended."""
        try:
            content = file.read_bytes()[:64]
            used_at = file.stat().st_mtime
        except OSError:
            return None
        now = self._clock.now()
        found = _CONTENT.fullmatch(content)
        if found is None or not (now < int(found[1]) and now < used_at + idle):
            return None
        return float(int(found[1])), (found[2] or b"").decode()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _ticket_file(folder: Path, secret: str) -> Path | None:
    return folder / _digest(secret) if _SECRET.fullmatch(secret) else None


def _remove(file: Path) -> bool:
    """Remove a file; return whether this call did."""
    try:
        file.unlink()
    except OSError:
        return False
    return True


PATH: Final = "/console"
COOKIE: Final = "accord_console"
CSRF: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")


class RequestGuard:
    """Checks requests and sets cookies; `url` is the public address, if any."""

    def __init__(self, url: str = "") -> None:
        self._base = urlsplit(url)

    def demand_name(self, request: Request) -> None:
        """Raise `ConsoleError` for a foreign Host header, against DNS rebinding."""
        host = request.headers.get("host", "").lower()
        ours = _PORT.sub("", host) in _LOOPBACK or (host and host == self._base.netloc.lower())
        if not ours:
            raise ConsoleError(
                tr("the console does not answer under this name"),
                where=host[:200] or None,
                mend=tr("use http://127.0.0.1 with the station's port, or set [console] url"),
                status=421,
            )

    def demand_own_page(self, request: Request) -> None:
        """Raise `ConsoleError` for a change that another site caused."""
        if not is_own_page(request.headers, self._base, also_by_host=True):
            raise ConsoleError(tr("another site asked for this, so nothing was done"), status=403)

    def demand_token(self, session: ConsoleSession, given: str) -> None:
        """Raise `ConsoleError` for a form without its session's token."""
        if not hmac.compare_digest(session.csrf.encode(), given.encode()):
            raise ConsoleError(
                tr("this form is not one of this session's, so nothing was done"),
                mend=tr("load the page again and send it once more"),
                status=403,
            )

    def set_cookie(self, request: Request, response: Response, secret: str) -> None:
        """Set the session cookie, valid until the browser is closed."""
        response.set_cookie(
            COOKIE,
            secret,
            path=PATH,
            secure=self._is_secure(request),
            httponly=True,
            samesite="strict",
        )

    def keep_choice(
        self, request: Request, response: Response, name: str, value: str, seconds: int
    ) -> None:
        """Set a cookie that is no secret."""
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path=PATH,
            secure=self._is_secure(request),
            httponly=True,
            samesite="strict",
        )

    def _is_secure(self, request: Request) -> bool:
        # A proxy may terminate TLS; the browser's Origin was checked already.
        came_by = request.headers.get("origin", self._base.scheme).partition(":")[0]
        return "https" in (request.url.scheme, came_by)

    def delete_cookie(self, response: Response) -> None:
        """Delete the session cookie."""
        response.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="strict")
