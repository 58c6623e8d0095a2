"""The limits of a connector that an operator may set, in the section `[relay]`.

Names and defaults are those of `ControlSettings` and `DeliveryLimits`, which a connector is given.
"""

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from accord.station.sections import RelaySettings

_YEAR: Final = 366 * 86_400.0
_WHOLE_YEAR: Final = 366 * 86_400


class ConnectorSettings(RelaySettings):
    """`[relay]`: the connector, its web chat, how gateways and platforms reach it, its limits."""

    journal_days: Annotated[
        int,
        Field(
            ge=0,
            le=36_500,
            description="how long the relay's journal keeps its records; where this station "
            "exports them, only those that have landed are removed; 0 for ever",
        ),
    ] = 90
    unlinked_sample: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="the share of messages of people who are not linked that is recorded, "
            "under pseudonyms; the others are only counted",
        ),
    ] = 0.0
    mass_mentions: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=64)], ...],
        Field(
            max_length=64,
            description="platforms on which agents may mention everybody at once; elsewhere such a "
            "mention is broken up",
            examples=['["webchat"]'],
        ),
    ] = ()
    token_seconds: Annotated[
        int,
        Field(
            ge=1, le=_WHOLE_YEAR, description="how far ahead a gateway's upgrade token may expire"
        ),
    ] = 600
    endless_tokens: Annotated[
        bool, Field(description="accept upgrade tokens that expire later than that, or never")
    ] = False
    enrolment_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=_WHOLE_YEAR,
            description="how long an enrolment token can be used, where it is not said otherwise",
        ),
    ] = 86_400
    grace_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=_WHOLE_YEAR,
            description="how long an old secret stays good after a rotation, where it is not "
            "said otherwise",
        ),
    ] = 3_600
    link_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=_WHOLE_YEAR,
            description="how long a link code, and then its confirmation, can be used",
        ),
    ] = 600
    link_codes: Annotated[
        int,
        Field(
            ge=1,
            le=1000,
            description="how many link codes of one agent are good at once; a further one replaces "
            "the oldest",
        ),
    ] = 5
    link_tries: Annotated[
        int,
        Field(
            ge=1,
            le=10_000_000,
            description="how many wrong link codes one person may send within `link_tries_seconds`",
        ),
    ] = 5
    link_tries_seconds: Annotated[
        int, Field(ge=1, le=_WHOLE_YEAR, description="for how long wrong link codes are counted")
    ] = 3_600
    requests_per_minute: Annotated[
        int,
        Field(
            ge=1, le=1_000_000, description="requests of one address to enrol, provision and manage"
        ),
    ] = 600
    enrolments_per_minute: Annotated[
        int, Field(ge=1, le=1_000_000, description="attempts of one address to enrol or provision")
    ] = 30
    manage_per_minute: Annotated[
        int, Field(ge=1, le=1_000_000, description="requests of one agent to manage itself")
    ] = 120
    link_codes_per_minute: Annotated[
        int, Field(ge=1, le=1_000_000, description="link codes that one agent may ask for")
    ] = 10
    link_messages_per_minute: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="direct messages about linking that one person gets answers to",
        ),
    ] = 20
    gateway_bots: Annotated[
        int,
        Field(
            ge=1,
            le=10_000,
            description="through how many bots one gateway may speak, which is also how many "
            "hellos it may send on one connection",
        ),
    ] = 64
    route_keys: Annotated[
        int,
        Field(
            ge=1, le=100_000, description="how many route keys one agent may claim on one platform"
        ),
    ] = 1_000
    listed_places: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="how many routes, shared places, grants and open places are listed of each",
        ),
    ] = 10_000
    profile_chats: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="for how many chats of one instance it is remembered which of its "
            "gateway's agents answered last",
        ),
    ] = 5_000
    operator_requests_per_minute: Annotated[
        int, Field(ge=1, le=1_000_000, description="requests of operators from one address")
    ] = 600
    operator_failures_per_minute: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="wrong operators' tokens from one address, after which it has to wait",
        ),
    ] = 10
    visibility_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long a platform's answer about who sees a channel is believed",
        ),
    ] = 30.0
    platform_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how long a platform may take for that answer")
    ] = 3.0
    unknown_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="for how long a platform that could not say who sees a channel is not "
            "asked again; at most `visibility_seconds`",
        ),
    ] = 5.0
    freshness_seconds: Annotated[
        float,
        Field(
            gt=0, le=_YEAR, description="how old the knowledge of other connectors' changes may be"
        ),
    ] = 1.0
    wake_seconds: Annotated[
        float,
        Field(gt=0, le=_YEAR, description="the pause between two pokes of one sleeping agent"),
    ] = 60.0
    wake_timeout_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how long a poke may take")
    ] = 5.0
    wakes_at_once: Annotated[
        int, Field(ge=1, le=10_000, description="how many pokes are under way at once")
    ] = 32
    managed_tenant_claim: Annotated[
        str,
        Field(
            min_length=1,
            max_length=100,
            description="the claim of a managed token that names the tenant",
        ),
    ] = "tenant"
    line_bytes: Annotated[
        int,
        Field(
            ge=1024,
            le=1 << 30,
            description="the longest line that a gateway may send, and the longest event for one",
        ),
    ] = 1024 * 1024
    message_bytes: Annotated[
        int,
        Field(
            ge=1024,
            le=1 << 30,
            description="the longest WebSocket message that is sent to a gateway; longer lines "
            "are split",
        ),
    ] = 256 * 1024
    frames_per_second: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="frames that a gateway may send, saved up for ten seconds",
        ),
    ] = 200
    pending_outbound: Annotated[
        int,
        Field(ge=1, le=10_000_000, description="how many actions of one gateway may be under way"),
    ] = 64
    hello_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how long a gateway may take to say hello")
    ] = 30.0
    refused_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how long after a refused hello another may come")
    ] = 2.0
    send_seconds: Annotated[
        float,
        Field(
            gt=0, le=_YEAR, description="how long a gateway may take to read what was sent to it"
        ),
    ] = 30.0
    silent_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long a gateway that was sent something may say nothing, before "
            "everything is buffered and it is woken",
        ),
    ] = 15.0
    ack_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long a gateway with a full window may leave everything unacknowledged",
        ),
    ] = 120.0
    outbound_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how long a platform may take for an action")
    ] = 30.0
    window: Annotated[
        int,
        Field(
            ge=1, le=10_000_000, description="how many messages one gateway may have unacknowledged"
        ),
    ] = 256
    deliveries: Annotated[
        int,
        Field(
            ge=1,
            le=10_000_000,
            description="how often a message is delivered before it is a dead letter",
        ),
    ] = 5
    forward_deliveries: Annotated[
        int, Field(ge=1, le=10_000_000, description="the same for a forwarded request")
    ] = 4
    buffer_rows: Annotated[
        int,
        Field(
            ge=1,
            le=10_000_000,
            description="how many messages may wait for one agent; the oldest beyond it are "
            "dead letters",
        ),
    ] = 100_000
    buffer_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how long a message may wait")
    ] = 7 * 86_400.0
    park_seconds: Annotated[
        float,
        Field(
            ge=60,
            le=604_800,
            description="how long a message waits while its platform does not say who can see the "
            "chat; then it is a dead letter",
        ),
    ] = 3600.0
    park_pause_seconds: Annotated[
        float,
        Field(gt=0, le=3600, description="the first pause before the platform is asked again"),
    ] = 5.0
    park_longest_pause_seconds: Annotated[
        float,
        Field(gt=0, le=3600, description="the longest such pause; pauses double up to it"),
    ] = 30.0
    parked_rows: Annotated[
        int, Field(ge=1, le=100_000, description="how many messages may wait so for one agent")
    ] = 1000
    park_sessions: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="how many sessions with such messages are decided again in one round",
        ),
    ] = 200
    park_at_once: Annotated[
        int, Field(ge=1, le=10_000, description="how many of them at the same time")
    ] = 20
    open_per_minute: Annotated[
        int,
        Field(
            ge=1,
            le=6000,
            description="how many messages a minute somebody who is not linked may send to an "
            "agent that is open to everybody",
        ),
    ] = 6
    dead_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how long dead letters are kept")
    ] = 30 * 86_400.0
    receipt_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long the id of a message is remembered, so that a repeated one is "
            "recognised",
        ),
    ] = 7 * 86_400.0
    chat_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long an agent may write to a chat after something was delivered "
            "from it",
        ),
    ] = 7 * 86_400.0
    message_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how long an agent may edit its own messages")
    ] = 30 * 86_400.0
    request_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long a repeated request of a gateway is recognised; longer than "
            "`outbox_seconds`",
        ),
    ] = 25 * 3_600.0
    outbox_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how long a reply is tried before it is given up")
    ] = 86_400.0
    outbox_pause_seconds: Annotated[
        float,
        Field(gt=0, le=_YEAR, description="the first pause between two attempts, which doubles"),
    ] = 1.0
    outbox_longest_pause_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="the longest pause between two attempts")
    ] = 300.0
    asked_pause_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            description="the longest pause that is kept when a platform asks for one; also the "
            "longest between two attempts",
        ),
    ] = 3600.0
    outbox_lanes: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="in how many chats a connector sends what waited, at the same time",
        ),
    ] = 100
    outbox_rows: Annotated[
        int, Field(ge=1, le=10_000_000, description="how many replies of one agent may wait")
    ] = 1000
    answer_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long a gateway waits for the end of an action before it is told "
            "that it is queued",
        ),
    ] = 20.0
    repeat_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long after a lost answer an equal action counts as its repetition",
        ),
    ] = 60.0
    declines_per_second: Annotated[
        float,
        Field(
            gt=0,
            le=1_000_000,
            description="how many actions that were declined are journaled in a second; the others "
            "are counted",
        ),
    ] = 5.0
    sweep_seconds: Annotated[
        float, Field(gt=0, le=_YEAR, description="how often each connector looks for what waits")
    ] = 1.0
    stranded_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long a message may wait for an agent that has not gone idle before "
            "the agent is woken",
        ),
    ] = 60.0
    retention_seconds: Annotated[
        float, Field(gt=0, le=86_400, description="how often what is too old is removed")
    ] = 30.0
    downtime_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long the connector may have been down before its clock is suspected: "
            "then nothing is deleted until `accord relay retention confirm`",
        ),
    ] = 604_800.0
    lease_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="after how long another connector takes over the platforms of one that "
            "died",
        ),
    ] = 6.0
    renew_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how often a connector renews its leases; well below `lease_seconds`",
        ),
    ] = 2.0
    batch: Annotated[
        int, Field(ge=1, le=10_000_000, description="how many messages share a transaction")
    ] = 512
    ack_batch_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long acknowledgements wait for others to share a transaction with",
        ),
    ] = 0.02
    note_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=_YEAR,
            description="how long after it was sent a message is stored as sent, unless it is "
            "acknowledged before",
        ),
    ] = 0.25

    @model_validator(mode="after")
    def _limits_fit_together(self) -> Self:
        if self.renew_seconds * 2 > self.lease_seconds:
            raise ValueError("renew_seconds should be at most half of lease_seconds")
        if self.outbox_pause_seconds > self.outbox_longest_pause_seconds:
            raise ValueError("outbox_pause_seconds should not exceed outbox_longest_pause_seconds")
        if self.request_seconds < self.outbox_seconds:
            raise ValueError("request_seconds should not be less than outbox_seconds")
        return self
