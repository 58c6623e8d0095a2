"""Calls to a service over HTTP: bounded, patient for a moment, and never blindly repeated.

Owns the limits on size and time, and the one place that catches what the HTTP library raises,
whose texts hold addresses and with them secrets. It knows no service.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

import httpx

from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.edge import MAX_BODY, json_object
from accord.relay.wire.actions import Result
from accord.relay.wire.members import Payload

CALL_SECONDS: Final = 10.0
LONGEST_WAIT: Final = 5.0
"""How long a service may ask to wait before an action is given up."""

# Nothing of a request has left when one of these is raised.
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a service answered."""

    status: int
    body: bytes
    retry_after: float | None

    @property
    def succeeded(self) -> bool:
        """Whether the status says so."""
        return 200 <= self.status < 300

    @property
    def members(self) -> Payload:
        """The JSON object in the body; empty where there is none."""
        try:
            return json_object(self.body)
        except RelayError:
            return {}


def client(auth: httpx.Auth | None = None) -> httpx.AsyncClient:
    """A client for the service that the operator's settings name; close it when done."""
    return httpx.AsyncClient(
        auth=auth,
        trust_env=False,
        follow_redirects=False,
        # What could not be sent must be known before the whole call is given up.
        timeout=httpx.Timeout(CALL_SECONDS, connect=CALL_SECONDS / 2, pool=CALL_SECONDS / 2),
        headers={"user-agent": "accord-relay"},
    )


async def call(client: httpx.AsyncClient, request: httpx.Request, service: str) -> Reply:
    """Ask a service something; told to wait a little, it waits and asks once more.

    Args:
        client: Which connects.
        request: What is asked.
        service: The name of the service, for an error.

    Raises:
        RelayError: It cannot be reached; nothing was sent. Or it may not be.
        TimeoutError: It did not answer, so that nobody knows what it did.
    """
    reply = await _ask(client, request, service)
    wait = 1.0 if reply.retry_after is None else reply.retry_after
    if reply.status == 429 and wait <= LONGEST_WAIT:
        await asyncio.sleep(wait)
        reply = await _ask(client, request, service)
    return reply


async def _ask(client: httpx.AsyncClient, request: httpx.Request, service: str) -> Reply:
    body = bytearray()
    try:
        async with asyncio.timeout(CALL_SECONDS):
            response = await client.send(request, stream=True)
            try:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_BODY:
                        body.clear()
                        break
            finally:
                await response.aclose()
    except _UNSENT:
        raise RelayError(Code.UNAVAILABLE, f"{service} cannot be reached") from None
    except (httpx.HTTPError, TimeoutError):
        raise TimeoutError(f"{service} did not answer") from None
    return Reply(response.status_code, bytes(body), _seconds(response.headers.get("retry-after")))


def _seconds(value: str | None) -> float | None:
    is_number = value is not None and value.isascii() and value.isdecimal() and len(value) < 7
    return float(value) if value is not None and is_number else None


class Sender:
    """Keeps the connector told whether a service that is called lets us in.

    Attributes:
        context: Who is told.
    """

    def __init__(self) -> None:
        self.context: PlatformContext | None = None
        self._is_refused = False

    async def send(self, sending: Awaitable[Result]) -> Result:
        """What became of an action; a refusal of ourselves is also told.

        Raises:
            TimeoutError: Nobody knows.
        """
        try:
            result = await sending
        except RelayError as error:
            if error.code is Code.UNAUTHORIZED and self.context is not None:
                self._is_refused = True
                self.context.troubled(error)
            return Result(False, error=error.what)
        if result.success and self._is_refused and self.context is not None:
            self._is_refused = False
            self.context.ready()
        return result
