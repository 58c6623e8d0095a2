"""Who comes through a door: clients on this machine that know the token, and nobody else.

Owns the token's file and the two checks. A page in a browser on this machine has the address but
not the token, and its name for this machine is not one of ours.
"""

import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from accord.capabilities.doors.refusals import refusal
from accord.community.bus.rates import is_from_here
from accord.community.errors import Code, CommunityError
from accord.kernel.files import sync_folder

_BEARER: Final = "bearer "
_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")
_LEAST: Final = 16
_OTHERS: Final = 0o077


def door_token(file: Path) -> str:
    """The token of this machine's doors, from its file; made on first use, for its owner only.

    Raises:
        CommunityError: The file cannot be used, or holds nothing that would protect anything.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(file)
        token = file.read_text("ascii").strip()
        is_open = bool(file.stat().st_mode & _OTHERS)
    except (OSError, ValueError) as error:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the doors' token cannot be read or made ({error})",
            where=str(file),
            mend="let this user own the folder, or remove the file",
        ) from error
    if is_open or len(token) < _LEAST:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the doors' token {'can be read by others' if is_open else 'is too short'}",
            where=str(file),
            mend="remove the file, and a new one is made",
        )
    return token


def _make(file: Path) -> None:
    """Write a new token, whole or not at all, unless there is one."""
    if file.exists():
        return
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(secrets.token_urlsafe(32) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # another process was first
    finally:
        draft.unlink()
    sync_folder(file.parent)


class Guard:
    """Lets a request through to an application, or refuses it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        error = self._refusal(scope)
        app = self._app if error is None else refusal(error)
        await app(scope, receive, send)

    def _refusal(self, scope: Scope) -> CommunityError | None:
        headers = Headers(scope=scope)
        host = _PORT.sub("", headers.get("host", "").lower())
        client = scope.get("client") or ("", 0)
        if not is_from_here(client[0], headers) or host not in _NAMES:
            return CommunityError(
                Code.UNAUTHORIZED,
                "this door opens to clients on this machine only",
                mend="use http://127.0.0.1 or http://localhost with the station's port",
            )
        shown = headers.get("authorization", "")
        given = shown[len(_BEARER) :] if shown[: len(_BEARER)].lower() == _BEARER else ""
        if not hmac.compare_digest(given.strip().encode(), self._token):
            return CommunityError(
                Code.UNAUTHORIZED,
                "this door wants the local token",
                mend="send the content of the station's keys/door.token as API key",
            )
        return None
