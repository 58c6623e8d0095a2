"""Settings and limits of a connector, with their defaults; times are seconds."""

from dataclasses import dataclass, field

from accord.web.outgoing import OutgoingPolicy


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The operator's choices."""

    # How far ahead an upgrade token may expire, and whether later or no expiry is accepted.
    token_seconds: int = 600
    endless_tokens: bool = False
    # How long an enrolment token can be used.
    enrolment_seconds: int = 86_400
    # How long the old secret stays valid after a rotation.
    grace_seconds: int = 3_600
    # How long a link code, and then its confirmation, can be used.
    link_seconds: int = 600
    # How many codes of one agent can be out at once; a further one replaces the oldest.
    link_codes: int = 5
    # How many wrong codes one platform user may send within a time.
    link_tries: int = 5
    link_tries_seconds: int = 3_600
    # Requests in a minute: of one address, to enrol of one address, of one agent, for link codes of
    # one agent, and direct messages about linking of one person.
    requests_per_minute: int = 600
    enrolments_per_minute: int = 30
    manage_per_minute: int = 120
    link_codes_per_minute: int = 10
    link_messages_per_minute: int = 20
    # Through how many bots one gateway may speak.
    gateway_bots: int = 64
    # How many route keys one instance may claim on one platform.
    route_keys: int = 1000
    # How many routes, shared places, grants and open places are listed, of each.
    listed_places: int = 10_000
    # For how many chats of one instance it is remembered which agent of its gateway answered last.
    profile_chats: int = 5000
    # Requests of operators in a minute, and wrong tokens, of one address.
    operator_requests_per_minute: int = 600
    operator_failures_per_minute: int = 10
    # How long a platform's answer about its permissions is cached, and how long it may take.
    visibility_seconds: float = 30.0
    platform_seconds: float = 3.0
    # How long an unknown answer is cached: less, as its cause may be over soon.
    unknown_seconds: float = 5.0
    # How long the connector may have been down before its clock is suspected, and nothing deleted.
    downtime_seconds: float = 7 * 86400.0
    # How old the knowledge of other processes' changes may be.
    freshness_seconds: float = 1.0
    # The cooldown between two pokes of one instance, and how long one poke may take in all.
    wake_seconds: float = 60.0
    wake_timeout_seconds: float = 5.0
    # How many pokes are under way at once.
    wakes_at_once: int = 32
    # The `iss` that managed tokens must carry; empty accepts any.
    managed_issuer: str = ""
    # The claim of a managed token that names the tenant.
    managed_tenant_claim: str = "tenant"
    # A JWKS or PEM file with the public keys for managed tokens; empty for none.
    managed_keys: str = ""
    # Where wake pokes may go.
    outgoing: OutgoingPolicy = field(default_factory=OutgoingPolicy)


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """What one connector allows."""

    # The longest line that a gateway may send, and the longest WebSocket message sent to it.
    line_bytes: int = 1024 * 1024
    message_bytes: int = 256 * 1024
    # Frames that a gateway may send, saved up for ten seconds. Acknowledgements of what it was sent
    # are free; a blank line counts as a frame, and so does every 64 KiB.
    frames_per_second: int = 200
    # Through how many bots one gateway may speak, which is also how many hellos a socket may send.
    gateway_bots: int = 64
    # How many actions of one gateway may be under way.
    pending_outbound: int = 64
    # How long a gateway may take to say hello, and how long after a refused hello another may come.
    hello_seconds: float = 30.0
    refused_seconds: float = 2.0
    # How long a gateway may take to read what was sent to it.
    send_seconds: float = 30.0
    # How long a gateway that was sent something may neither acknowledge nor say anything, before
    # everything is buffered and it is woken.
    silent_seconds: float = 15.0
    # How long a full window may wait for an acknowledgement.
    ack_seconds: float = 120.0
    # How long a platform may take for an action, and actions when the connector stops.
    outbound_seconds: float = 30.0
    finish_seconds: float = 5.0
    # How many rows one gateway may have unacknowledged.
    window: int = 256
    # How often an event is delivered before it is dead; a forwarded request has three retries.
    deliveries: int = 5
    forward_deliveries: int = 4
    # How many rows may wait for one instance, and how long.
    buffer_rows: int = 100_000
    buffer_seconds: float = 7 * 86400.0
    # How long an event is parked while a platform does not answer who can see its chat: long enough
    # for the usual outage of a platform, short enough for an answer to still make sense. The pauses
    # between two questions double from the first to the longest.
    park_seconds: float = 3600.0
    park_pause_seconds: float = 5.0
    park_longest_pause_seconds: float = 30.0
    # How many events may be parked for one instance.
    parked_rows: int = 1000
    # How many sessions with parked events one sweep takes up, and how many of them at once.
    park_sessions: int = 200
    park_at_once: int = 20
    # How many messages a minute somebody who is not linked may send to an agent that is open.
    open_per_minute: int = 6
    # How long dead letters are kept.
    dead_seconds: float = 30 * 86400.0
    # How long an event id is remembered, so that a repeated event is recognised.
    receipt_seconds: float = 7 * 86400.0
    # How long the journal is kept, 0 for ever, and whether an exporter removes what it exported, so
    # that only the rest is removed here.
    journal_seconds: float = 90 * 86400.0
    is_exported: bool = False
    # The share of messages of people who are not linked that is recorded, under pseudonyms.
    unlinked_sample: float = 0.0
    # How long a chat may be answered after something was delivered from it.
    chat_seconds: float = 7 * 86400.0
    # How long an instance's own messages may be edited.
    message_seconds: float = 30 * 86400.0
    # How long a `requestId` is an idempotency key; a gateway repeats it as long as it waits.
    request_seconds: float = 25 * 3600.0
    # How long an action is tried, and the pauses between: doubling from the first to the longest.
    outbox_seconds: float = 86400.0
    outbox_pause_seconds: float = 1.0
    outbox_longest_pause_seconds: float = 300.0
    # The longest pause that a platform may ask for, of an action and of everything that it is sent.
    asked_pause_seconds: float = 3600.0
    # In how many chats a process does what waited, at once.
    outbox_lanes: int = 100
    # How many actions of one instance may wait.
    outbox_rows: int = 1000
    # How long a gateway waits for the end of an action before it is told that it is queued. It is
    # less than the 30 seconds after which gateways give up.
    answer_seconds: float = 20.0
    # How long after a lost answer an equal action counts as its repetition.
    repeat_seconds: float = 60.0
    # How many declined actions of this process are journaled in a second; the others are counted.
    declines_per_second: float = 5.0
    # How often a process looks for rows whose hint was lost.
    sweep_seconds: float = 1.0
    # How long something may wait for an instance that has not gone idle before it is woken.
    stranded_seconds: float = 60.0
    # How often what is too old is removed, by one process.
    retention_seconds: float = 30.0
    # How long the connector may have been down before its clock is suspected, and nothing deleted.
    downtime_seconds: float = 7 * 86400.0
    # How long a platform's lease lasts, by the database's clock, and how often it is renewed.
    lease_seconds: float = 6.0
    renew_seconds: float = 2.0
    # How many events share a transaction.
    batch: int = 512
    # How long acknowledgements wait for others to share a commit with.
    ack_batch_seconds: float = 0.02
    # How long after it was sent a row is stored as sent, unless it is acknowledged before.
    note_seconds: float = 0.25
