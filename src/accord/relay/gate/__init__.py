"""Who receives an event, and what an agent may say where. Pure.

`decide` is called once per event by the connector, and again over all of history by the pipeline.
Its answer carries every layer's verdict with the rule and the reason. `may_send` is the same in the
other direction. Facts are values that somebody else has looked up.
"""

from accord.relay.gate.decide import Candidate, Decision, decide
from accord.relay.gate.egress import (
    RECENT_SECONDS,
    Capability,
    Chat,
    EgressFacts,
    declined,
    may_send,
)
from accord.relay.gate.facts import (
    Account,
    Channel,
    Event,
    Facts,
    Grant,
    Home,
    Principal,
    PrincipalPolicy,
    Route,
    Seat,
    Sight,
    User,
    View,
)
from accord.relay.gate.linking import (
    CODE_BITS,
    LinkCommand,
    LinkRequest,
    codes_in,
    recognise,
    write_code,
)
from accord.relay.gate.mentions import neutralise
from accord.relay.gate.narrowing import about
from accord.relay.gate.records import Recorded, from_record, to_record
from accord.relay.gate.verdicts import RULES, Layer, Verdict

__all__ = [
    "CODE_BITS",
    "RECENT_SECONDS",
    "RULES",
    "Account",
    "Candidate",
    "Capability",
    "Channel",
    "Chat",
    "Decision",
    "EgressFacts",
    "Event",
    "Facts",
    "Grant",
    "Home",
    "Layer",
    "LinkCommand",
    "LinkRequest",
    "Principal",
    "PrincipalPolicy",
    "Recorded",
    "Route",
    "Seat",
    "Sight",
    "User",
    "Verdict",
    "View",
    "about",
    "codes_in",
    "decide",
    "declined",
    "from_record",
    "may_send",
    "neutralise",
    "recognise",
    "to_record",
    "write_code",
]
