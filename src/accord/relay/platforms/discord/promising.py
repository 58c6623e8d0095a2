"""Interactions that come by the gateway, for a bot to whose station Discord cannot post.

Owns their order: taken first, then promised an answer by the API. One that was promised already, or
comes too late for it, stays taken.
"""

from typing import Any, Final

import structlog

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.discord import interactions
from accord.relay.platforms.discord.buckets import Route
from accord.relay.platforms.discord.interactions import Kind
from accord.relay.platforms.discord.rest import Rest

_PATH: Final = "/gateway"
_NEVER: Final = frozenset({Code.BAD_REQUEST, Code.TOO_LARGE})
_log = structlog.stdlib.get_logger(__name__)


async def take(
    interaction: dict[str, Any], bot_id: str, context: PlatformContext, rest: Rest, clock: Clock
) -> None:
    """Take an interaction, and promise an answer.

    Raises:
        RelayError: It could not be stored now, or the token is refused.
        StoreError: It could not be stored.
    """
    kind = interaction.get("type")
    try:
        inbound = interactions.inbound(interaction, bot_id, _PATH, clock.now())
        if kind == Kind.AUTOCOMPLETE:
            answer = interactions.NO_CHOICES
        else:
            await context.ingest(inbound)
            answer = interactions.deferred(kind)
    except RelayError as error:
        if error.code not in _NEVER:
            raise
        _log.warning("an interaction cannot be kept", reason=error.what)
        return
    [found] = inbound.found
    token = found.value.get_secret_value()
    route = Route.of("POST", "/interactions/{}/{}/callback", inbound.event_id, token)
    try:
        answered = await rest.ask(route, answer, by_token=False)
    except RelayError as error:
        _log.warning("an interaction could not be promised an answer", reason=error.what)
        return
    if not answered.ok:
        _log.info("an interaction could not be promised an answer", reason=answered.reason)
