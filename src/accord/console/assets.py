"""The files that every page loads: our style, our script, our icon, and htmx.

Owns the list of files: nothing else is served, whatever a path says. htmx is taken out of an
installed distribution that carries it, without importing anything of it; where it is missing, pages
are made of links and forms alone.
"""

import hashlib
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accord.console.guard import PATH

_OURS: Final = {
    "style.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_SCRIPT: Final = _OURS["console.js"]
_CARRIER: Final = "django-htmx"
_CARRIED: Final = {
    "htmx.js": "static/django_htmx/htmx-2.min.js",
    "sse.js": "static/django_htmx/ext/hx-sse-2.min.js",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that is served."""

    name: str
    media_type: str
    body: bytes

    @property
    def tag(self) -> str:
        """Changes when the file does."""
        return hashlib.sha256(self.body).hexdigest()[:16]

    @property
    def url(self) -> str:
        """Where it is; another version is somewhere else."""
        return f"{PATH}/static/{self.name}?{self.tag}"

    def route(self) -> Route:
        """What serves it."""
        headers = {"etag": f'"{self.tag}"', "cache-control": "private, max-age=86400"}

        async def answer(request: Request) -> Response:
            if request.headers.get("if-none-match") == headers["etag"]:
                return Response(status_code=304, headers=headers)
            return Response(self.body, 200, headers, self.media_type)

        return Route(f"{PATH}/static/{self.name}", answer)


def assets() -> list[Asset]:
    """Every file that there is."""
    folder = files(__package__) / "static"
    ours = [Asset(name, kind, (folder / name).read_bytes()) for name, kind in _OURS.items()]
    return [*ours, *_htmx()]


def _htmx() -> list[Asset]:
    try:
        there = metadata.files(_CARRIER) or []
    except metadata.PackageNotFoundError:
        return []
    found = [
        Asset(name, _SCRIPT, Path(str(file.locate())).read_bytes())
        for name, path in _CARRIED.items()
        for file in there
        if file.as_posix().endswith(path) and Path(str(file.locate())).is_file()
    ]
    return found if len(found) == len(_CARRIED) else []
