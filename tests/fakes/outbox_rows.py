"""Rows of the outbox, as a connector would have left them."""

from typing import Any

from sqlalchemy import Connection, insert

from accord.relay.connector.tables import outbox, requests


def add_action(connection: Connection, request_id: str, **changed: Any) -> None:
    """Put an action of `echo` into the outbox, given up unless `changed` says otherwise."""
    body = '{"op":"send","chat_id":"c1","content":"private words","reply_to":null,"metadata":{}}'
    row = {
        "instance": "echo",
        "request_id": request_id,
        "tenant": "default",
        "platform": "memory",
        "lane": "c1",
        "op": "send",
        "body": body,
        "digest": request_id,
        "state": "unknown",
        "attempts": 3,
        "sent": "[]",
        "created_at": 1_000,
        "due_at": 1_000,
        "holder": "",
        "epoch": 3,
        "held_until": 0,
        "error": "there was no answer",
        "ended_at": 2_000,
    } | changed
    connection.execute(insert(outbox), row)
    known = {name: row[name] for name in ("instance", "request_id", "digest")}
    connection.execute(insert(requests), known | {"asked_at": row["created_at"]})
