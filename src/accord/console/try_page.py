"""The page of one contract with a form for each surface, for whoever develops the service.

It is served on loopback by `accord service dev`. A secret in the address that the command prints
becomes a cookie; without it nothing is shown or called. Rendered on the server, without scripts of
its own, under a strict content security policy.
"""

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from accord.console.app import HEADERS
from accord.console.messages import mark, tr
from accord.console.page import Form, read_form
from accord.console.sessions import ConsoleError, RequestGuard
from accord.console.templates import Templates, assets
from accord.contracts import digest
from accord.fabric import Client, FabricError, ValidationError
from accord.fabric.transfer import upload
from accord.kernel.errors import AccordError
from accord.web.forms import WHOLE, Field, fields_of, read_value

_COOKIE: Final = "accord_try"
_FILE: Final = "$file"
_SECONDS: Final = 20.0
_ITEMS: Final = 20
_KINDS: Final = {
    "rpc": ("RPC", mark("Call")),
    "operations": ("operation", mark("Start")),
    "feeds": ("feed", mark("Open")),
    "events": ("event", ""),
    "jobs": ("job", ""),
}

Connect = Callable[[Callable[[Client], Awaitable[Any]]], Awaitable[Any]]
"""Runs a function with a client of the contract; raises AccordError."""


@dataclass(frozen=True, slots=True)
class TriedSurface:
    """A surface as the page shows it."""

    section: str
    kind: str
    name: str
    docs: str
    fields: list[Field]
    verb: str
    has_upload: bool
    is_tried: bool

    @property
    def anchor(self) -> str:
        """Its id on the page."""
        return f"{self.section}-{self.name}".replace(".", "-").lower()

    @property
    def action(self) -> str:
        """The address of its form; empty if callers cannot use it."""
        return f"/try/{self.section}/{self.name}" if self.verb else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call."""

    title: str
    text: str
    ms: int


class TryPage:
    """The page; `manifest` may be replaced while it is served."""

    def __init__(self, manifest: Mapping[str, Any], connect: Connect) -> None:
        self.manifest = manifest
        self.secret = secrets.token_urlsafe(24)
        self._ticket = ""
        self._connect = connect
        self._guard = RequestGuard()
        self._assets = [each for each in assets() if each.name in ("style.css", "icon.svg")]
        script = next(each for each in assets() if each.name == "console.js")
        self._assets.append(script)
        self._templates = Templates(
            self._assets, {"station": "development", "groups": (), "home_option": ""}
        )

    def ticket(self) -> str:
        """What opens the page once, for a command line that others on this machine may see."""
        self._ticket = secrets.token_urlsafe(24)
        return self._ticket

    def application(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                *(each.route() for each in self._assets),
                Route("/", self._checked(self._show), methods=["GET"]),
                Route("/try/{section}/{name}", self._checked(self._try), methods=["POST"]),
            ]
        )

    def _checked(
        self, work: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                self._guard.demand_name(request)
                if request.method == "POST":
                    self._guard.demand_own_page(request)
                response = self._entered(request) or await work(request)
            except ConsoleError as error:
                response = self._page("refused.html", {"trouble": error}, error.status)
            response.headers.update({**HEADERS, "cache-control": "no-store"})
            return response

        return endpoint

    def _entered(self, request: Request) -> Response | None:
        """Exchange the secret of the address for a cookie; ConsoleError without either."""
        given = request.query_params.get("token", "")
        if request.method == "GET" and given and (self._is_secret(given) or self._redeem(given)):
            response = RedirectResponse("/", 303)
            response.set_cookie(_COOKIE, self.secret, path="/", httponly=True, samesite="strict")
            return response
        if not self._is_secret(request.cookies.get(_COOKIE, "")):
            raise ConsoleError(
                tr("this page is for whoever started the service"),
                mend=tr("open the address that `accord service dev` printed"),
                status=403,
            )
        return None

    def _redeem(self, given: str) -> bool:
        if not self._ticket or not hmac.compare_digest(given.encode(), self._ticket.encode()):
            return False
        self._ticket = ""
        return True

    def _is_secret(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.secret.encode())

    async def _show(self, _request: Request) -> Response:
        return self._contract(None, {}, None)

    async def _try(self, request: Request) -> Response:
        section, name = request.path_params["section"], request.path_params["name"]
        declared = self.manifest.get(section, {}).get(name)
        if declared is None or not _KINDS.get(section, ("", ""))[1]:
            raise ConsoleError(tr("the contract has no such surface"), status=404)
        async with read_form(request) as form:
            began = time.monotonic()
            try:
                payload = read_value(fields_of(self._schema(declared["input"])), form.texts)
                said, title = await self._call(section, name, payload, form), tr("Answer")
            except AccordError as error:
                said, title = _described(error), getattr(error, "type", tr("Error"))
            text = json.dumps(said, ensure_ascii=False, indent=2)
            outcome = Outcome(title, text, int((time.monotonic() - began) * 1000))
            return self._contract((section, name), form.texts, outcome)

    async def _call(self, section: str, name: str, payload: Any, form: Form) -> Any:
        file = form.files.get(_FILE)
        data = b"" if file is None else await file.read()

        async def work(client: Client) -> Any:
            if section == "rpc":
                return await client.call(name, payload, within=_SECONDS)
            if section == "feeds":
                return await _first(client.feed(name, payload))
            run = await client.start(name, payload)
            if run.transfer is not None:
                await upload(client.link, run.transfer, data)
            try:
                async with asyncio.timeout(_SECONDS):
                    return (await run.wait()).body
            except TimeoutError:
                return (await run.get()).body  # it goes on

        return await self._connect(work)

    def _contract(
        self, tried: tuple[str, str] | None, typed: Mapping[str, str], outcome: Outcome | None
    ) -> Response:
        surfaces = [
            TriedSurface(
                section,
                kind,
                name,
                declared.get("docs", {}).get("markdown", ""),
                fields_of(self._schema(declared["input"])) if verb else [],
                verb,
                declared.get("transfer", {}).get("direction") == "send",
                (section, name) == tried,
            )
            for section, (kind, verb) in _KINDS.items()
            for name, declared in sorted(self.manifest.get(section, {}).items())
        ]
        return self._page(
            "try.html",
            {
                "contract": self.manifest,
                "digest": digest(self.manifest),
                "surfaces": surfaces,
                "typed": typed,
                "outcome": outcome,
                "trouble": None,
                "whole": WHOLE,
                "file_field": _FILE,
            },
        )

    def _schema(self, reference: Mapping[str, Any]) -> Any:
        return self.manifest.get("schemas", {}).get(reference["schema"], True)

    def _page(self, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
        text = self._templates.render(template, values)
        return Response(text, status, media_type="text/html; charset=utf-8")


async def _first(items: AsyncIterator[Any]) -> list[Any]:
    """The first items of a feed, as many as come in time."""
    found: list[Any] = []
    try:
        async with asyncio.timeout(_SECONDS / 4), aclosing(items) as stream:  # type: ignore[type-var]
            async for item in stream:
                found.append(item)
                if len(found) == _ITEMS:
                    break
    except TimeoutError:
        pass
    return found


def _described(error: AccordError) -> dict[str, Any]:
    if isinstance(error, ValidationError | FabricError):
        return error.members()
    return {"message": error.what, **({"field": error.where} if error.where else {})}
