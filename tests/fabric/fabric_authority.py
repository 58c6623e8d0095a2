"""An authority in miniature: answers bootstraps over HTTP, and resolves sessions over NATS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.fabric.fabric_network import Sessions, connected

from accord.authority.contracts import builtins
from accord.contracts.session_proof import connect_message, is_proved
from accord.fabric import Caller, NotFoundError, Request, Server
from accord.station.listener import Listener, bind

SENTINEL = {"jwt": "sentinel", "seed": "SUACH75SWCM5D2JMJM6EKLR2WDARVGZT4QC6LX3AGHSWOMVAKERABBBRWM"}


class Miniature:
    """What it answers next, and what it was asked.

    Attributes:
        script: Answers to give before "ready", each a status and a body.
        known: The digests whose manifests it has.
    """

    def __init__(self, nats_url: str) -> None:
        self.nats_url = nats_url
        self.url = ""
        self.script: list[tuple[int, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.known: set[str] = set()
        self.bindings: dict[str, Any] = {}
        self.sessions = Sessions()

    async def bootstrap(self, request: HttpRequest) -> Response:
        body = await request.json()
        self.asked.append(body)
        message = connect_message(body["contractDigest"], body["iat"])
        assert is_proved(body["sessionKey"], message, body["sig"])
        if self.script:
            status, answer = self.script.pop(0)
            return answer if isinstance(answer, Response) else JSONResponse(answer, status)
        if "manifest" in body:
            self.known.add(body["contractDigest"])
        if body["contractDigest"] not in self.known:
            refusal = {"status": "refused", "code": "manifest_required", "message": "unknown"}
            return JSONResponse(refusal, 409)
        return JSONResponse(
            {
                "status": "ready",
                "transports": {"nats": {"urls": [self.nats_url]}},
                "sentinel": SENTINEL,
                "bindings": self.bindings,
                "deployment": "graphs",
                "instance": "one",
            }
        )

    async def resolve(self, _request: Request, payload: Any) -> Any:
        self.sessions.asked += 1
        caller = self.sessions.known.get(payload["sessionKey"])
        if caller is None:
            raise NotFoundError("there is no such session")
        return {
            "holder": caller.holder,
            "subject": caller.subject,
            "capabilities": sorted(caller.capabilities),
        }


async def _anybody(session: str) -> Caller:
    return Caller(session, "service", "anybody")


@asynccontextmanager
async def miniature(nats_url: str) -> AsyncIterator[Miniature]:
    """Run one until the block ends."""
    authority = Miniature(nats_url)
    app = Starlette(routes=[Route("/bootstrap/v1", authority.bootstrap, methods=["POST"])])
    listener = Listener(app)
    async with connected(nats_url) as connection:
        server = Server(connection, builtins()["trellis.auth@v1"], _anybody)
        server.rpc("Auth.Sessions.Resolve")(authority.resolve)
        with bind("127.0.0.1", 0) as listening:
            serving = asyncio.create_task(listener.serve([listening]))
            await listener.serving.wait()
            authority.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            try:
                async with server:
                    yield authority
            finally:
                listener.should_exit = True
                await serving
