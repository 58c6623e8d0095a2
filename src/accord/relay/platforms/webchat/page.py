"""The page and its files, with the headers that keep anything else out of it.

Owns the list of files: nothing else is served, whatever a path says.
"""

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FILES: Final = (
    "index.html",
    "style.css",
    "icon.svg",
    "app.js",
    "api.js",
    "live.js",
    "markdown.js",
    "messages.js",
    "sidebar.js",
)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""What every answer of the web chat says to the browser."""


def routes(path: str) -> list[Route]:
    """The page at a path with a slash, and its files below."""
    made = [_route(f"{path}/static/{name}", name) for name in _FILES[1:]]

    async def onwards(_request: Request) -> Response:
        return RedirectResponse(f"{path}/", 308, HEADERS)

    return [Route(path, onwards), _route(f"{path}/", _FILES[0]), *made]


def _route(path: str, name: str) -> Route:
    body = (files(__package__) / "static" / name).read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag, "cache-control": "no-cache"}
    media_type = _TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, 200, headers, media_type)

    return Route(path, answer)
