"""The relevance policy: its wire form, and how a gateway's own settings become one.

Section 7.3 of the specification. Owns the projection of `require_mention`,
`free_response_channels` and `{PLATFORM}_ALLOW_BOTS`; settings and environment are arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from accord.relay.wire import members
from accord.relay.wire.source import GENERIC_PLATFORM

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_ADMITTING: Final = frozenset({"mentions", "all"})
MAX_SCOPES: Final = 10_000
"""How many channels a policy may name."""


@dataclass(frozen=True, slots=True)
class RelevancePolicy:
    """When an agent engages with what it may see.

    Attributes:
        require_address: Somebody else's message must mention the bot or answer it.
        free_response_scopes: The channels where that is waived.
        allow_other_bots: Whether messages of bots count.
    """

    require_address: bool = False
    free_response_scopes: frozenset[str] = frozenset()
    allow_other_bots: bool = False

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the body of a declaration; missing members have their defaults.

        Raises:
            RelayError: A member has the wrong type, or too many channels are named.
        """
        given = members.payload(value, "a policy")
        scopes = frozenset(members.texts(given, "freeResponseScopes"))
        if len(scopes) > MAX_SCOPES:
            raise members.bad(f"at most {MAX_SCOPES} channels", where="/freeResponseScopes")
        return cls(
            members.flag(given, "requireAddress", False),
            scopes,
            members.flag(given, "allowOtherBots", False),
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form, but for the platform."""
        return {
            "requireAddress": self.require_address,
            "freeResponseScopes": sorted(self.free_response_scopes),
            "allowOtherBots": self.allow_other_bots,
        }


def project(
    platform: str, settings: Mapping[str, Any], environment: Mapping[str, str]
) -> RelevancePolicy | None:
    """The policy that a gateway's settings amount to on a platform.

    A setting is taken from the platform's own block, else from its block below `platforms`, else
    from the top; a block that has it as null ends the search.

    Args:
        platform: The platform fronted.
        settings: The gateway's settings.
        environment: Where `{PLATFORM}_ALLOW_BOTS` is looked up.

    Returns:
        None for the generic platform, which has no policy.
    """
    if platform == GENERIC_PLATFORM:
        return None
    bots = environment.get(f"{platform.upper()}_ALLOW_BOTS", "")
    return RelevancePolicy(
        _is_true(_setting(platform, settings, "require_mention")),
        _channels(_setting(platform, settings, "free_response_channels")),
        bots.strip().lower() in _ADMITTING,
    )


def _setting(platform: str, settings: Mapping[str, Any], name: str) -> Any:
    platforms = settings.get("platforms")
    below = platforms.get(platform) if isinstance(platforms, Mapping) else None
    for block in (settings.get(platform), below, settings):
        if isinstance(block, Mapping) and name in block:
            return block[name]
    return None


def _is_true(value: Any) -> bool:
    return value.strip().lower() in _TRUE if isinstance(value, str) else value is True


def _channels(value: Any) -> frozenset[str]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)):
        return frozenset()
    named = (str(each).strip() for each in value if isinstance(each, (str, int)))
    return frozenset(name for name in named if name)
