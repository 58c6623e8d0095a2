"""Asks a system whether sessions are apart from JetStream, as `accounts` has it.

It matters where somebody else has made the accounts. It changes nothing, and whoever asks decides
what to do about the answer.
"""

from typing import Any, Final

import orjson
from nats.aio.client import Client

from accord.authority.nats.accounts import EXPORTS

_ANSWER_SECONDS: Final = 2.0
_API: Final = "$JS.API.>"


async def fault(system: Client, account: str) -> str | None:
    """What is wrong with the accounts; None where nothing is.

    Args:
        system: A connection of the system account.
        account: The public key of the account of sessions, which somebody must have connected to.

    Raises:
        NatsError: The server does not answer.
    """
    sessions = await _info(system, account)
    if sessions.get("jetstream_enabled"):
        return "the account of sessions has JetStream itself"
    sources = {
        each.get("account")
        for each in sessions.get("imports") or ()
        if each.get("subject") == _API and each.get("type") == "service"
    }
    for source in sources:
        given = (await _info(system, str(source))).get("exports") or ()
        if [(each.get("subject"), each.get("response_type")) for each in given] != _GIVEN:
            return "the account of streams has other exports than the one of everything"
    return None if sources else "the account of sessions imports no JetStream"


_GIVEN: Final = [(each["subject"], each["response_type"]) for each in EXPORTS]


async def _info(system: Client, account: str) -> dict[str, Any]:
    answer = await system.request(f"$SYS.REQ.ACCOUNT.{account}.INFO", timeout=_ANSWER_SECONDS)
    try:
        body = orjson.loads(answer.data)
    except orjson.JSONDecodeError:
        body = None
    found = body.get("data") if isinstance(body, dict) else None
    return found if isinstance(found, dict) else {}
