"""Interactions on their way to an endpoint: signed, posted, and the answer checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from tests.fakes.discord.interactions import (
    ANSWER_SECONDS,
    CallbackType,
    Interaction,
    Interactions,
    InteractionType,
    State,
)
from tests.fakes.discord.rest.calls import Refused
from tests.fakes.discord.rest.interactions import read_callback
from tests.fakes.discord.world import Json, World

from accord.kernel.signing import SigningKey
from accord.testing import HarnessError

_OPTION_TYPES: Mapping[type, int] = {str: 3, int: 4, bool: 5, float: 10}


@dataclass(frozen=True, slots=True)
class Answered:
    """What an endpoint answered.

    Attributes:
        kind: The form of the answer; None where the status is no success.
        interaction: What it answers; None for a ping.
    """

    status: int
    kind: CallbackType | None = None
    data: Json | None = None
    interaction: Interaction | None = None


def signed(key: SigningKey, timestamp: str, body: bytes) -> dict[str, str]:
    """The headers of a request that the service makes."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "Discord-Interactions/1.0 (+https://discord.com)",
        "X-Signature-Timestamp": timestamp,
        "X-Signature-Ed25519": key.sign_bytes(timestamp.encode() + body).hex(),
    }


def as_options(options: Mapping[str, Any]) -> list[Json]:
    """The options of a command, with their types."""
    return [
        {"name": name, "type": _OPTION_TYPES[type(value)], "value": value}
        for name, value in options.items()
    ]


async def post(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Make a request as the service does: no redirects, and three seconds of patience.

    Raises:
        HarnessError: No answer came in time.
    """
    async with httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False) as client:
        try:
            answer = await client.post(url, content=body, headers=dict(headers))
        except httpx.HTTPError as error:
            raise HarnessError(
                f"the interactions endpoint gave no answer ({type(error).__name__})",
                where=url,
                mend=f"answer within {ANSWER_SECONDS:.0f} seconds",
            ) from error
    return answer.status_code, answer.content


async def ping(world: World, key: SigningKey, application_id: str, url: str) -> Answered:
    """Ask an endpoint whether anybody is there.

    Raises:
        HarnessError: No answer came in time, or one that is no pong.
    """
    body, timestamp = _ping(world, application_id)
    status, answer = await post(url, body, signed(key, timestamp, body))
    if status != 200:
        return Answered(status)
    kind, data = _callback(answer, url)
    if kind is not CallbackType.PONG:
        raise HarnessError("a ping was not answered with a pong", where=url)
    return Answered(status, kind, data)


async def try_endpoint(world: World, key: SigningKey, application_id: str, url: str) -> None:
    """Ping an endpoint, and see that it refuses pings of which a byte was changed on the way.

    Raises:
        HarnessError: It answered otherwise.
    """
    status = (await ping(world, key, application_id, url)).status
    if status != 200:
        raise HarnessError(f"a ping was answered with {status}", where=url)
    body, timestamp = _ping(world, application_id)
    for sent in (body + b" ", body.replace(b'"version":1', b'"version":2')):
        status, _ = await post(url, sent, signed(key, timestamp, body))
        if status != 401:
            raise HarnessError(
                f"a request with a wrong signature was answered with {status}",
                where=url,
                mend="verify the signature over the raw bytes and answer 401",
            )


def _ping(world: World, application_id: str) -> tuple[bytes, str]:
    payload: Json = {
        "id": world.new_id(),
        "application_id": application_id,
        "type": int(InteractionType.PING),
        "token": world.secret(32),
        "version": 1,
        "user": world.bot.json(),
    }
    return orjson.dumps(payload), str(int(world.clock.now()))


async def deliver(
    interaction: Interaction,
    interactions: Interactions,
    key: SigningKey,
    url: str,
) -> Answered:
    """Post an interaction and take the answer.

    Raises:
        HarnessError: No answer came in time, or one that has not the documented form.
    """
    body, timestamp = orjson.dumps(interaction.payload), str(int(interaction.made_at))
    try:
        status, answer = await post(url, body, signed(key, timestamp, body))
    except HarnessError:
        interaction.state = State.FAILED
        raise
    if status == 202 and interaction.state is not State.WAITING:
        return Answered(status, None, None, interaction)  # it was answered over REST
    if status != 200:
        interaction.state = State.FAILED
        return Answered(status, interaction=interaction)
    kind, data = _callback(answer, url)
    if kind is CallbackType.PONG:
        raise HarnessError("a command was answered with a pong", where=url)
    interactions.acknowledge(interaction, kind, data)
    return Answered(status, kind, data, interaction)


def _callback(answer: bytes, url: str) -> tuple[CallbackType, Json]:
    try:
        form = orjson.loads(answer)
    except orjson.JSONDecodeError:
        form = None
    if not isinstance(form, dict):
        raise HarnessError(
            "the answer to an interaction is not a JSON object",
            where=url,
            mend='answer such as {"type": 5}',
        )
    try:
        return read_callback(form)
    except Refused as why:
        raise HarnessError(
            f"the answer to an interaction was refused: {why.json()}", where=url
        ) from why
