"""Reads the stream of job events into the view, from its beginning and for ever.

A consumer that is lost, with the server or for any other reason, is made anew where it stopped.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import orjson
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from accord.authority.errors import AuthorityError
from accord.authority.reconcile import JetStream
from accord.authority.reconcile.platform import JOBS
from accord.authority.services.jobs_view import JobsView

_log = structlog.stdlib.get_logger(__name__)

_AT_ONCE: Final = 64
_EXPIRES_SECONDS: Final = 5
_SILENCE_SECONDS: Final = 7.0
_RETRY_SECONDS: Final = 1.0
_SECOND: Final = 1_000_000_000
_REQUEST_IS_OVER: Final = frozenset({"404", "408"})


@asynccontextmanager
async def following(view: JobsView, nats: Client) -> AsyncIterator[None]:
    """Keep a view up with the stream until the block ends."""
    task = asyncio.create_task(_follow(view, nats), name="follow jobs")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _follow(view: JobsView, nats: Client) -> None:
    while True:
        try:
            await _read(view, nats)
        except (AuthorityError, NatsError, TimeoutError) as error:
            _log.warning("the stream of jobs is read anew", why=str(error) or "it fell silent")
            await asyncio.sleep(_RETRY_SECONDS)


async def _read(view: JobsView, nats: Client) -> None:
    """Read on with a consumer of its own, until something fails."""
    config = {
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": view.sequence + 1,
        "ack_policy": "none",
        "inactive_threshold": 60 * _SECOND,
        "mem_storage": True,
        "num_replicas": 1,
    }
    asked = {"stream_name": JOBS, "config": config}
    made = await JetStream(nats).ask(f"CONSUMER.CREATE.{JOBS}", asked)
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{JOBS}.{made['name']}"
    # JetStream is in another account, from which each request brings one answer.
    question = orjson.dumps({"batch": 1, "expires": _EXPIRES_SECONDS * _SECOND})
    inbox = nats.new_inbox()
    messages = await nats.subscribe(inbox)
    try:
        for _ in range(_AT_ONCE):
            await nats.publish(subject, question, inbox)
        while True:
            message = await messages.next_msg(_SILENCE_SECONDS)
            status = (message.headers or {}).get("Status")
            if status is None:
                view.take(message.metadata.sequence.stream, message.subject, message.data)
            elif status not in _REQUEST_IS_OVER:
                raise TimeoutError(f"the server answers {status}")
            await nats.publish(subject, question, inbox)
    finally:
        with suppress(NatsError):
            await messages.unsubscribe()
