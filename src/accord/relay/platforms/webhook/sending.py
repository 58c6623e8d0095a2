"""Agents' actions on their way to a program: signed, and posted once.

Owns the forms that are posted. A URL is called only where the guard of outgoing requests lets it
be. The `webhook-id` follows from the idempotency key: by it a receiver can tell what it has had.
"""

from typing import Any, Final

import httpx
import orjson
from blake3 import blake3

from accord.kernel.clock import Clock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.calling import Reply, call
from accord.relay.platforms.webhook.keys import Keys
from accord.relay.wire.actions import Result

_SERVICE: Final = "the webhook's receiver"
_REFUSED: Final = frozenset({401, 403, 410})
_LONGEST_ID: Final = 512


class Receiver:
    """The program to which actions are posted.

    Args:
        client: Which connects, guarded.
        url: Where it is.
        keys: What signs.
        clock: Where the time comes from.
    """

    def __init__(self, client: httpx.AsyncClient, url: str, keys: Keys, clock: Clock) -> None:
        self._client = client
        self._url = url
        self._keys = keys
        self._clock = clock

    async def post(self, action: dict[str, Any], key: str) -> Result:
        """Post an action.

        Args:
            action: What is posted.
            key: What it is known by, should it come again.

        Raises:
            RelayError: It was refused (UNAUTHORIZED), or not sent.
            TimeoutError: It was not answered.
        """
        # A key may hold any letters; a header and its receiver take only some, and not too many.
        name = f"act_{blake3(key.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
        body = orjson.dumps(action)
        now = int(self._clock.now())
        request = self._client.build_request(
            "POST",
            self._url,
            content=body,
            headers={
                "content-type": "application/json",
                "webhook-id": name,
                "webhook-timestamp": str(now),
                "webhook-signature": self._keys.sign(name, now, body),
            },
        )
        reply = await call(self._client, request, _SERVICE)
        if reply.status in _REFUSED:
            raise RelayError(
                Code.UNAUTHORIZED,
                f"{_SERVICE} refuses us ({reply.status})",
                mend="compare url and send_secret in [[relay.webhook]] with the receiver's",
            )
        if not reply.succeeded:
            return Result(False, error=f"{_SERVICE} answered {reply.status}")
        return Result(True, _message_id(reply))


def _message_id(reply: Reply) -> str | None:
    given = reply.members.get("message_id")
    return given if isinstance(given, str) and 0 < len(given) <= _LONGEST_ID else None
