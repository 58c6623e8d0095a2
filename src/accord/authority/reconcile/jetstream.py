"""JetStream's management interface, as far as reconciliation needs it.

Requests and answers are the server's own JSON (its durations in nanoseconds exceed canonical JSON),
so that observed and desired configurations can be compared member by member.
"""

from collections.abc import Mapping
from typing import Any, Final

import nats.errors
import orjson
from nats.aio.client import Client

from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.resources import ResourceRef

_API: Final = "$JS.API"
_NOT_FOUND: Final = frozenset({10014, 10059})
_TAKEN: Final = frozenset({10058, 10148, 10013})


class JetStreamError(AuthorityError):
    """JetStream refused a request; `number` is its error code."""

    def __init__(self, number: int, description: str, *, where: str) -> None:
        super().__init__(Code.RESOURCE_CONFLICT, f"JetStream refuses: {description}", where=where)
        self.number = number

    @property
    def is_taken(self) -> bool:
        """Whether something of that name was created in the meantime."""
        return self.number in _TAKEN


class JetStream:
    """Streams and consumers of one account; `seconds` is the timeout of a request."""

    def __init__(self, connection: Client, *, seconds: float = 5.0) -> None:
        self._connection = connection
        self._seconds = seconds

    async def info(self, place: ResourceRef) -> dict[str, Any] | None:
        """The `config` and state of a stream or consumer; None if it does not exist."""
        try:
            return await self.ask(f"{_kind(place)}.INFO.{_path(place)}")
        except JetStreamError as error:
            if error.number in _NOT_FOUND:
                return None
            raise

    async def captures(self, subject: str) -> list[str]:
        """The streams that capture a subject."""
        answer = await self.ask("STREAM.NAMES", {"subject": subject})
        return list(answer.get("streams") or ())

    async def create(self, place: ResourceRef, config: Mapping[str, Any]) -> None:
        """Create a stream or consumer; `JetStreamError.is_taken` if the name is in use."""
        await self._write("CREATE", "create", place, config)

    async def update(self, place: ResourceRef, config: Mapping[str, Any]) -> None:
        """Change a stream or consumer."""
        await self._write("UPDATE", "update", place, config)

    async def delete(self, place: ResourceRef) -> None:
        """Delete a stream or consumer, if it exists."""
        try:
            await self.ask(f"{_kind(place)}.DELETE.{_path(place)}")
        except JetStreamError as error:
            if error.number not in _NOT_FOUND:
                raise

    async def ask(self, subject: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request of the management interface; `JetStreamError` if the server refuses."""
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
            raise JetStreamError(number, description, where=subject)
        return answer

    async def _write(
        self, verb: str, action: str, place: ResourceRef, config: Mapping[str, Any]
    ) -> None:
        if place.consumer:
            await self.ask(
                f"CONSUMER.CREATE.{_path(place)}",
                {"stream_name": place.stream, "config": config, "action": action},
            )
        else:
            await self.ask(f"STREAM.{verb}.{_path(place)}", config)


def _kind(place: ResourceRef) -> str:
    return "CONSUMER" if place.consumer else "STREAM"


def _path(place: ResourceRef) -> str:
    return f"{place.stream}.{place.consumer}" if place.consumer else place.stream


def _read(data: bytes, subject: str) -> dict[str, Any]:
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise AuthorityError(Code.UNAVAILABLE, "JetStream's answer is not JSON", where=subject)
    return answer
