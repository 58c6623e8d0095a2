"""JetStream's management interface, as far as reconciliation needs it.

Plain requests in the server's own JSON (whose durations in nanoseconds are larger than canonical
JSON allows), so that what it says is compared with what it is told, member by member. It decides
nothing.
"""

from collections.abc import Mapping
from typing import Any, Final

import nats.errors
import orjson
from nats.aio.client import Client

from accord.authority.errors import AuthorityError, Code
from accord.authority.reconcile.resources import Place

_API: Final = "$JS.API"
_NOT_FOUND: Final = frozenset({10014, 10059})
_TAKEN: Final = frozenset({10058, 10148, 10013})


class RefusedError(AuthorityError):
    """JetStream refuses a request; `number` is its own code."""

    def __init__(self, number: int, description: str, *, where: str) -> None:
        super().__init__(Code.RESOURCE_CONFLICT, f"JetStream refuses: {description}", where=where)
        self.number = number

    @property
    def is_taken(self) -> bool:
        """Whether something of that name came to be in the meantime."""
        return self.number in _TAKEN


class JetStream:
    """Streams and consumers of one account.

    Args:
        connection: A connection that may manage the account.
        seconds: How long the server may take to answer.
    """

    def __init__(self, connection: Client, *, seconds: float = 5.0) -> None:
        self._connection = connection
        self._seconds = seconds

    async def see(self, place: Place) -> dict[str, Any] | None:
        """What the server says of a stream or consumer: `config` and state; none if not there."""
        try:
            return await self.ask(f"{_kind(place)}.INFO.{_path(place)}")
        except RefusedError as error:
            if error.number in _NOT_FOUND:
                return None
            raise

    async def captures(self, subject: str) -> list[str]:
        """The streams that take messages of a subject."""
        answer = await self.ask("STREAM.NAMES", {"subject": subject})
        return list(answer.get("streams") or ())

    async def create(self, place: Place, config: Mapping[str, Any]) -> None:
        """Make a stream or consumer that is not there.

        Raises:
            RefusedError: The server refuses; `is_taken` if there is another by that name.
        """
        await self._write("CREATE", "create", place, config)

    async def update(self, place: Place, config: Mapping[str, Any]) -> None:
        """Change what is there.

        Raises:
            RefusedError: The server refuses.
        """
        await self._write("UPDATE", "update", place, config)

    async def delete(self, place: Place) -> None:
        """Delete a stream or consumer; nothing happens if it is not there."""
        try:
            await self.ask(f"{_kind(place)}.DELETE.{_path(place)}")
        except RefusedError as error:
            if error.number not in _NOT_FOUND:
                raise

    async def ask(self, subject: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request of the management interface.

        Raises:
            RefusedError: The server refuses.
            AuthorityError: It does not answer, or not in JSON.
        """
        body = b"" if payload is None else orjson.dumps(payload)
        try:
            reply = await self._connection.request(f"{_API}.{subject}", body, timeout=self._seconds)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise AuthorityError(
                Code.UNAVAILABLE,
                f"JetStream does not answer: {str(error) or type(error).__name__}",
                mend="see that the NATS server runs, with JetStream",
            ) from error
        answer = _read(reply.data, subject)
        if refused := answer.get("error"):
            number, description = refused.get("err_code", 0), refused.get("description", "")
            raise RefusedError(number, description, where=subject)
        return answer

    async def _write(self, verb: str, action: str, place: Place, config: Mapping[str, Any]) -> None:
        if place.consumer:
            await self.ask(
                f"CONSUMER.CREATE.{_path(place)}",
                {"stream_name": place.stream, "config": config, "action": action},
            )
        else:
            await self.ask(f"STREAM.{verb}.{_path(place)}", config)


def _kind(place: Place) -> str:
    return "CONSUMER" if place.consumer else "STREAM"


def _path(place: Place) -> str:
    return f"{place.stream}.{place.consumer}" if place.consumer else place.stream


def _read(data: bytes, subject: str) -> dict[str, Any]:
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise AuthorityError(Code.UNAVAILABLE, "JetStream's answer is not JSON", where=subject)
    return answer
