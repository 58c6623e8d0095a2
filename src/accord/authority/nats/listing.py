"""Asks every server of a system for the connections of sessions, page by page."""

import contextlib
from typing import Final

import orjson
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from accord.authority.nats.advisories import PAGE, Connection, Page, read_page

_ANSWER_SECONDS: Final = 2.0
_QUIET_SECONDS: Final = 0.25
_ALL: Final = "PING"


async def listed(system: Client, account: str) -> list[Connection]:
    """Every connection of a session on every server that answers.

    Args:
        system: A connection of the system account.
        account: The account whose sessions are asked for.

    Raises:
        TimeoutError: No server answers.
        NatsError: The connection is away.
    """
    pages = await _ask(system, account, _ALL)
    if not pages:
        raise TimeoutError("no server answers")
    found: list[Connection] = []
    while pages:
        page = pages.pop()
        found += page.connections
        if page.following is not None:
            pages += await _ask(system, account, page.server, page.following)
    return found


async def _ask(system: Client, account: str, server: str, offset: int = 0) -> list[Page]:
    """One page of one server, or the first pages of all of them."""
    question = {"acc": account, "auth": True, "limit": PAGE, "offset": offset}
    inbox = system.new_inbox()
    answers = await system.subscribe(inbox)
    pages: list[Page] = []
    try:
        await system.publish(f"$SYS.REQ.SERVER.{server}.CONNZ", orjson.dumps(question), reply=inbox)
        while server == _ALL or not pages:
            # Nobody knows how many servers there are; who has not answered soon after the first
            # is asked again at the next roll call.
            wait = _QUIET_SECONDS if pages else _ANSWER_SECONDS
            page = read_page((await answers.next_msg(wait)).data)
            if page is not None:
                pages.append(page)
    except NatsTimeoutError:
        pass
    finally:
        with contextlib.suppress(NatsError):
            await answers.unsubscribe()
    return pages
