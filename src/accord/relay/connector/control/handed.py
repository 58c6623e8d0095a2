"""What is handed out once, and shown by nothing afterwards: tokens, codes and secrets."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """A token to hand to whoever runs the gateway; `expires_at` in milliseconds."""

    tenant: str
    instance: str
    expires_at: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LinkCode:
    """A code to send to the bot; `expires_at` in milliseconds."""

    expires_at: int
    code: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rotated:
    """A new secret, and until when (in milliseconds) the old one is still good."""

    old_until: int
    secret: str = field(repr=False)
