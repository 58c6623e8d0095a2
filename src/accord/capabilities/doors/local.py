"""What the local APIs share: access by token, errors in OpenAI's format, routed calls.

A web page in a local browser does not have the token, and its Host header is refused. Calls are
signed with the node's key; all checks and limits of the bus apply.
"""

import hmac
import json
import os
import re
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from accord.community.bus import Frame
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.community.rules.capabilities import CapabilityDescriptor, schema_hash
from accord.community.rules.formats import display_id
from accord.community.rules.routing import OfferedModel
from accord.kernel.files import sync_folder
from accord.web.addresses import is_from_here


@cache
def descriptions() -> dict[str, dict[str, Any]]:
    """Return every description by schema hash."""
    found: dict[str, dict[str, Any]] = {}
    for folder in files("accord.capabilities").iterdir():
        data = folder.joinpath("data")
        for file in data.iterdir() if data.is_dir() else ():
            if file.name.endswith(".json"):
                form = json.loads(file.read_bytes())
                digest = schema_hash(
                    form["name"],
                    form["version"],
                    form["request_schema"],
                    form.get("response_schema"),
                    form.get("stream_schema"),
                )
                found[digest] = form
    return found


_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}
_CONTEXT: Final = "context_length_exceeded"


class OpenAiError(CommunityError):
    """An error for which OpenAI's API has a code.

    Args:
        code: Gives the HTTP status.
        what: A whole sentence; clients show it unchanged.
        param: The wrong member of the request.
    """

    def __init__(self, code: Code, what: str, *, param: str | None, openai_code: str) -> None:
        super().__init__(code, what, where=param)
        self.openai_code = openai_code


def unknown_model(name: str) -> OpenAiError:
    """Return the error for a model that is not offered."""
    return OpenAiError(
        Code.NOT_FOUND,
        f"The model `{name[:128]}` does not exist here; GET /v1/models lists those that do.",
        param="model",
        openai_code="model_not_found",
    )


def error_body(error: CommunityError) -> dict[str, Any]:
    """Return an error as OpenAI's JSON."""
    code = error.code.value
    if isinstance(error, OpenAiError):
        code = error.openai_code
    elif "context_length" in error.details:
        code = _CONTEXT
    elif error.code is Code.NOT_IMPLEMENTED and "unsupported" not in error.details:
        code = "model_not_found"  # listed, and its file or server is gone
    return {
        "error": {
            "message": error.what if isinstance(error, OpenAiError) else str(error),
            "type": _KINDS.get(_status(error), "server_error"),
            "param": error.where,
            "code": code,
        }
    }


def error_response(error: CommunityError) -> JSONResponse:
    """Return an error as an HTTP response."""
    headers = {}
    wait = error.details.get("retry_after_ms")
    if isinstance(wait, int | float):
        headers["Retry-After"] = str(max(1, round(wait / 1000)))
    return JSONResponse(error_body(error), _status(error), headers)


def _status(error: CommunityError) -> int:
    if error.code is Code.NOT_IMPLEMENTED:
        return 400 if "unsupported" in error.details else 404
    return error.code.status


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


class BusCaller:
    """Calls the capabilities of a community for a node's owner; empty means the current one.

    The node's router chooses the node that serves a call.
    """

    def __init__(self, node: Node, community: str = "") -> None:
        self._node = node
        self._named = community

    def descriptors(self) -> dict[str, CapabilityDescriptor]:
        """Return what can be called, by name: the newest version on this node or another."""
        community = self._known_community()
        if community is None:
            registry = self._node.bus.registry
            names = [listing["name"] for listing in registry.listings()]
            found = {name: registry.serving(name, None) for name in names}
            return {name: offer.descriptor for name, offer in found.items() if offer is not None}
        return self._node.router.offered(community)

    async def models(self, capability: str) -> dict[str, OfferedModel]:
        """Return the models of a capability in the community, by name, the best first."""
        community = self._known_community()
        if community is None:
            return {}
        return {each.name: each for each in await self._node.router.models(community, capability)}

    def node_name(self, node_id: str) -> str:
        """Return the display name of a node."""
        community = self._known_community()
        if node_id == self._node.key.id or community is None:
            return "accord"
        peer = self._node.book.peer(community, node_id)
        return display_id(node_id) if peer is None else str(peer.manifest["display_name"])

    async def call(
        self, capability: str, params: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Call a capability that does not stream; raises the error of the bus."""
        return await self._node.router.call(self._community(), capability, params, given)

    async def stream(
        self, capability: str, params: Mapping[str, Any], given: Mapping[str, Any]
    ) -> AsyncGenerator[Frame]:
        """Call a capability that streams; raises the error of the bus."""
        frames = self._node.router.stream(self._community(), capability, params, given)
        async with aclosing(frames) as closing:
            async for frame in closing:
                yield frame

    def _known_community(self) -> str | None:
        current = self._node.current
        community = self._named or ("" if current is None else current.community_id)
        return community if community in self._node.communities else None

    def _community(self) -> str:
        community = self._known_community()
        if community is None:
            raise CommunityError(
                Code.PARTITION,
                "this node is in no community yet",
                mend="found one with accord community create, or join one",
            )
        return community
