"""Every limit and interval of the delivery half, with its default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connector allows; times are in seconds.

    Attributes:
        line_bytes: The longest line that a gateway may send.
        message_bytes: The longest WebSocket message that is sent.
        frames_per_second: How many frames a gateway may send, acknowledgements of what it was
            sent not counted; it may save up ten seconds' worth.
        pending_outbound: How many actions of one gateway may be under way.
        hello_seconds: How long a gateway may take to say hello.
        send_seconds: How long a gateway may take to read what was sent to it.
        ack_seconds: How long a full window may wait for an acknowledgement.
        outbound_seconds: How long a platform may take for an action.
        finish_seconds: How long actions under way may take when the connector stops.
        window: How many rows one gateway may have unacknowledged.
        deliveries: How often an event is delivered before it is dead.
        forward_deliveries: The same for a forwarded request: the first time and three retries.
        buffer_rows: How many rows may wait for one instance.
        buffer_seconds: How long a row may wait.
        dead_seconds: How long dead letters are kept.
        receipt_seconds: For how long an event is known as taken.
        chat_seconds: For how long a chat that delivered something may be answered.
        message_seconds: For how long an instance's own messages may be edited.
        request_seconds: For how long a `requestId` is an idempotency key.
        sweep_seconds: How often the holder of sockets looks for rows that no hint told it of.
        lease_seconds: How long a platform's socket is owned without renewal, in database time.
        renew_seconds: How often owners renew and others try.
        batch: How many events share a unit of work.
        ack_batch_seconds: How long acknowledgements wait for others to share a commit with.
        note_seconds: How long after a row was sent that is kept, unless it is acknowledged before.
    """

    line_bytes: int = 1024 * 1024
    message_bytes: int = 256 * 1024
    frames_per_second: int = 200
    pending_outbound: int = 64
    hello_seconds: float = 30.0
    send_seconds: float = 30.0
    ack_seconds: float = 120.0
    outbound_seconds: float = 30.0
    finish_seconds: float = 5.0
    window: int = 256
    deliveries: int = 5
    forward_deliveries: int = 4
    buffer_rows: int = 100_000
    buffer_seconds: float = 7 * 86400.0
    dead_seconds: float = 30 * 86400.0
    receipt_seconds: float = 7 * 86400.0
    chat_seconds: float = 7 * 86400.0
    message_seconds: float = 30 * 86400.0
    request_seconds: float = 600.0
    sweep_seconds: float = 1.0
    lease_seconds: float = 6.0
    renew_seconds: float = 2.0
    batch: int = 512
    ack_batch_seconds: float = 0.02
    note_seconds: float = 0.25
