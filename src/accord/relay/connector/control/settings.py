"""What an operator may choose about the control half, with its defaults.

Owns the numbers; times are seconds. It reads no file: the station fills it from its settings.
"""

from dataclasses import dataclass, field

from accord.relay.outgoing import OutgoingPolicy


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The choices of the operator.

    Attributes:
        token_seconds: How far ahead an upgrade token may expire.
        endless_tokens: Whether tokens that never expire, or later than that, are taken.
        enrolment_seconds: How long an enrolment token can be used.
        grace_seconds: How long the old secret stays valid after a rotation.
        link_seconds: How long a link code, and then its confirmation, can be used.
        link_tries: How many wrong codes one platform user may send ...
        link_tries_seconds: ... within this time.
        visibility_seconds: How long an answer of a platform about its permissions is believed.
        platform_seconds: How long such an answer may take.
        freshness_seconds: How old the knowledge of other processes' changes may be.
        wake_seconds: The cooldown between two pokes of one instance.
        wake_timeout_seconds: How long one poke may take in all.
        managed_issuer: The `iss` that managed tokens must carry; empty asks for none.
        managed_tenant_claim: The claim of a managed token that names the tenant.
        managed_keys: A JWKS or PEM file with the public keys for managed tokens; empty for none.
        outgoing: Where wake pokes may go.
    """

    token_seconds: int = 600
    endless_tokens: bool = False
    enrolment_seconds: int = 86_400
    grace_seconds: int = 3_600
    link_seconds: int = 600
    link_tries: int = 5
    link_tries_seconds: int = 3_600
    visibility_seconds: float = 30.0
    platform_seconds: float = 3.0
    freshness_seconds: float = 1.0
    wake_seconds: float = 60.0
    wake_timeout_seconds: float = 5.0
    managed_issuer: str = ""
    managed_tenant_claim: str = "tenant"
    managed_keys: str = ""
    outgoing: OutgoingPolicy = field(default_factory=OutgoingPolicy)
