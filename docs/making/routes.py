"""The page of the HTTP routes: what the planes serve, each with its sentence from `routes.toml`.

Routes are asked of the objects that make them. These are given a stand-in for everything that a
request would need, since none is served. A route without a sentence, and a sentence without a
route, are refused.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from docs.making.errors import MakingError
from docs.making.markdown import code, join, table
from starlette.routing import BaseRoute, Route, WebSocketRoute

from accord.authority.http import routes as authority_routes
from accord.capabilities.doors import openai_routes
from accord.community.bus import Bus, member_routes, public_routes
from accord.community.control import control_routes
from accord.community.rules.tunnels import TunnelLimits
from accord.community.sync import sync_routes
from accord.community.tunnel_server import TunnelServer
from accord.relay.connector import ControlRoutes, ControlSettings
from accord.relay.connector.admin import OperatorRoutes
from accord.relay.platforms.settings import WebChatSettings
from accord.relay.platforms.webchat.http import ChatRoutes
from accord.station.health import application

_MEANINGS: Final = Path(__file__).with_name("routes.toml")


class _StandIn:
    """Takes the place of a server: whatever is asked of it, it is there and does nothing."""

    def __getattr__(self, name: str) -> "_StandIn":
        return self

    def __call__(self, *given: object, **named: object) -> "_StandIn":
        return self

    def __iter__(self) -> Iterator["_StandIn"]:
        return iter(())

    def signed_route(
        self, path: str, _handler: object, *, methods: Sequence[str] = ("GET",), **_named: object
    ) -> Route:
        """As the bus makes one."""
        return Route(path, self, methods=list(methods))

    def signed_socket(self, path: str, _handler: object) -> WebSocketRoute:
        """As the bus makes one."""
        return WebSocketRoute(path, self)


_ANY: Final[Any] = _StandIn()
# Limits are numbers.
_CONTROL: Final[Any] = SimpleNamespace(
    directory=SimpleNamespace(settings=ControlSettings(), authentication=_ANY)
)


def render() -> str:
    """The page."""
    meanings = tomllib.loads(_MEANINGS.read_text(encoding="utf-8"))
    served = {title: list(_named(found())) for title, found in _SERVED.items()}
    if unknown := meanings.keys() - served.keys():
        raise _bad(f"nothing is served under {min(unknown)!r}")
    return join(
        join([f"## {title}", _routes(title, names, meanings.get(title, {}))])
        for title, names in served.items()
    )


def _routes(title: str, names: Sequence[str], meanings: Mapping[str, str]) -> str:
    if missing := [name for name in names if name not in meanings]:
        raise _bad(f"{missing[0]} has no sentence of meaning")
    if gone := [name for name in meanings if name not in names]:
        raise _bad(f"{title} has no route {gone[0]}")
    rows = [(*map(code, name.split(" ", 1)), meanings[name]) for name in names]
    return table(("method", "path", "answers"), rows)


def _named(routes: Iterable[BaseRoute]) -> Iterable[str]:
    for route in routes:
        if isinstance(route, WebSocketRoute):
            yield f"WebSocket {route.path}"
        elif isinstance(route, Route) and "/static/" not in route.path:
            for method in sorted((route.methods or {"GET"}) - {"HEAD", "OPTIONS"}):
                yield f"{method} {route.path}"


def _bus() -> Sequence[BaseRoute]:
    own: Sequence[BaseRoute] = Bus.routes.__get__(_ANY, Bus)
    public = public_routes(manifest=_ANY, is_ready=_ANY)
    tunnels = TunnelServer("", {}, _ANY, TunnelLimits()).routes(_ANY)
    return [*own, *sync_routes(_ANY, {}, _ANY), *tunnels, *public, *member_routes(_ANY, _ANY)]


_SERVED: Final[Mapping[str, Callable[[], Iterable[BaseRoute]]]] = {
    "Station": lambda: application("", _ANY, _ANY).routes,
    "Doors": lambda: openai_routes(_ANY, _ANY, _ANY),
    "Connector": lambda: [
        *ControlRoutes(_CONTROL, _ANY).routes,
        *OperatorRoutes(_CONTROL, _ANY, _ANY, _ANY).routes,
    ],
    "Web chat": lambda: ChatRoutes(_ANY, _ANY, _ANY, _ANY, WebChatSettings()).routes,
    "Authority": lambda: authority_routes(_ANY, _ANY, _ANY, _ANY, _ANY, token=""),
    "Bus": _bus,
    "Node": lambda: control_routes(_ANY, _ANY),
}


def _bad(what: str) -> MakingError:
    return MakingError(what, where=str(_MEANINGS.name), mend="make the file fit what is served")
