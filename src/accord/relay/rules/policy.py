"""Principal and relevance policies of an instance on a platform."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Self

from accord.relay.rules import members
from accord.relay.rules.session_keys import GENERIC_PLATFORM

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_ADMITTING: Final = frozenset({"mentions", "all"})
MAX_SCOPES: Final = 10_000
"""The most channels that a policy may name."""


@dataclass(frozen=True, slots=True)
class RelevancePolicy:
    """Which of the messages that it may see are relevant to an agent."""

    # Messages of others than the owner must mention the bot or answer it.
    require_address: bool = False
    # The channels where that is not required.
    free_response_scopes: frozenset[str] = frozenset()
    allow_other_bots: bool = False

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the body of a declaration; missing members have their defaults.

        Raises:
            RelayError: A member has the wrong type, or too many channels are named.
        """
        payload = members.payload(value, "a policy")
        scopes = frozenset(members.texts(payload, "freeResponseScopes"))
        if len(scopes) > MAX_SCOPES:
            raise members.bad(
                f"at most {MAX_SCOPES} channels are allowed", where="/freeResponseScopes"
            )
        return cls(
            members.flag(payload, "requireAddress", False),
            scopes,
            members.flag(payload, "allowOtherBots", False),
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form, without the platform."""
        return {
            "requireAddress": self.require_address,
            "freeResponseScopes": sorted(self.free_response_scopes),
            "allowOtherBots": self.allow_other_bots,
        }


def project_policy(
    platform: str, settings: Mapping[str, Any], environment: Mapping[str, str]
) -> RelevancePolicy | None:
    """The policy of a gateway's own settings on a platform; None for the generic platform.

    A setting is read from the platform's own block, else from its block below `platforms`, else
    from the top level; null in a block ends the search. `{PLATFORM}_ALLOW_BOTS` is read from the
    environment.
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


class PolicyKey(NamedTuple):
    """An instance on a platform: the key of its policies."""

    tenant: str
    instance: str
    platform: str


class PrincipalPolicy(Enum):
    """Whose messages an instance receives in the channels that it holds."""

    OWNER_ONLY = "owner-only"
    ALLOW_LIST = "allow-list"
    ANY = "any"


class PrincipalRule(NamedTuple):
    """An instance's principal policy, with the user ids of its allow list."""

    policy: PrincipalPolicy = PrincipalPolicy.OWNER_ONLY
    allow: frozenset[str] = frozenset()
