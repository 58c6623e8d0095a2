"""Access to the local APIs: clients on this machine that know the token.

A web page in a local browser does not have the token, and its Host header is refused.
"""

import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from accord.capabilities.doors.errors import error_response
from accord.community.errors import Code, CommunityError
from accord.kernel.files import sync_folder
from accord.web.addresses import is_from_here

_BEARER: Final = "bearer "
_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")
_LEAST: Final = 16
_OTHERS: Final = 0o077


def door_token(file: Path) -> str:
    """Read the token of the local APIs from its file; create it on first use with mode 0600.

    Raises:
        CommunityError: The file is unusable, readable by others, or its token too short.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_token(file)
        token = file.read_text("ascii").strip()
        is_open = bool(file.stat().st_mode & _OTHERS)
    except (OSError, ValueError) as error:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the token of the local APIs cannot be read or created ({error})",
            where=str(file),
            mend="let this user own the folder, or remove the file",
        ) from error
    if is_open or len(token) < _LEAST:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the token of the local APIs {'can be read by others' if is_open else 'is too short'}",
            where=str(file),
            mend="remove the file, and a new one is made",
        )
    return token


def _make_token(file: Path) -> None:
    """Write a new token atomically unless the file exists."""
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


class LocalGuard:
    """ASGI middleware that checks address, Host header and token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then call the application."""
        error = self._refusal(scope)
        app = self._app if error is None else error_response(error)
        await app(scope, receive, send)

    def _refusal(self, scope: Scope) -> CommunityError | None:
        headers = Headers(scope=scope)
        host = _PORT.sub("", headers.get("host", "").lower())
        client = scope.get("client") or ("", 0)
        if not is_from_here(client[0], headers) or host not in _NAMES:
            return CommunityError(
                Code.UNAUTHORIZED,
                "this API answers clients on this machine only",
                mend="use http://127.0.0.1 or http://localhost with the station's port",
            )
        shown = headers.get("authorization", "")
        given = shown[len(_BEARER) :] if shown[: len(_BEARER)].lower() == _BEARER else ""
        if not hmac.compare_digest(given.strip().encode(), self._token):
            return CommunityError(
                Code.UNAUTHORIZED,
                "this API requires the local token",
                mend="send the content of the station's keys/door.token as API key",
            )
        return None
