"""What a client's contract asks of a person, and what follows from what is allowed. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from accord.authority.decisions.needs import needs
from accord.authority.errors import AuthorityError, Code
from accord.authority.identities.records import Access
from accord.contracts import Effective, resolve_uses

_KINDS: Final = ("app", "agent")
_UNKNOWN: Final = "uses.unknown-contract"


def demand_client(manifest: Mapping[str, Any]) -> None:
    """Go on only with a contract by which people act.

    Raises:
        AuthorityError: It is one of a service or a device.
    """
    if manifest["kind"] not in _KINDS:
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"nobody logs in to a {manifest['kind']}",
            where="/kind",
            mend="present the contract of an app or an agent",
        )


def asked(manifest: Mapping[str, Any], active: Mapping[str, Effective]) -> Access:
    """What a contract asks for, against what is active now.

    Raises:
        AuthorityError: A required use leads nowhere.
    """
    resolution = resolve_uses(manifest, active, known=active.keys())
    if not resolution.ok:
        blocker = resolution.blockers[0]
        code = Code.DEPENDENCY_UNKNOWN if blocker.rule == _UNKNOWN else Code.DEPENDENCY_NOT_ACTIVE
        raise AuthorityError(
            code,
            blocker.message,
            where=blocker.pointer,
            mend="wait until it is offered",
            findings=resolution.blockers,
        )
    found = needs(manifest, resolution)
    return Access(found.surfaces | found.optional, found.capabilities | found.optional_capabilities)


def held(
    allowed: Access, person: frozenset[str], override: frozenset[str] | None
) -> frozenset[str]:
    """The keys of a session: what is allowed of the person's own, and what an operator grants."""
    return (allowed.capabilities & person) | (override or frozenset())
