"""Clients that act for people: what their contracts ask for, and where their logins end."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from accord.authority.rules.classify import derive_needs
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import Access
from accord.contracts import EffectiveContract, resolve_uses

CLIENT_KINDS: Final = ("app", "agent")
"""The kinds of contracts through which people act."""

_UNKNOWN_CONTRACT: Final = "uses.unknown-contract"


def require_client(manifest: Mapping[str, Any]) -> None:
    """Check that people act through a contract, not a service or a device."""
    if manifest["kind"] not in CLIENT_KINDS:
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"nobody logs in to a {manifest['kind']}",
            where="/kind",
            mend="present the contract of an app or an agent",
        )


def requested_access(
    manifest: Mapping[str, Any], active: Mapping[str, EffectiveContract]
) -> Access:
    """What a contract asks for; `AuthorityError` if a required use cannot be resolved."""
    resolution = resolve_uses(manifest, active, known=active.keys())
    if not resolution.ok:
        blocker = resolution.blockers[0]
        code = (
            Code.DEPENDENCY_UNKNOWN
            if blocker.rule == _UNKNOWN_CONTRACT
            else Code.DEPENDENCY_NOT_ACTIVE
        )
        raise AuthorityError(
            code,
            blocker.message,
            where=blocker.pointer,
            mend="wait until it is offered",
            findings=resolution.blockers,
        )
    found = derive_needs(manifest, resolution)
    return Access(found.surfaces | found.optional, found.capabilities | found.optional_capabilities)


def held_capabilities(
    allowed: Access, person: frozenset[str], override: frozenset[str] | None
) -> frozenset[str]:
    """A session's capabilities: the allowed ones of the person, and the override."""
    return (allowed.capabilities & person) | (override or frozenset())


_MAX_URL: Final = 2000
# Only URL characters, so that the value cannot escape from a header or a policy.
_URL: Final = re.compile(r"[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=%]+", re.ASCII)
_HOST: Final = re.compile(r"[a-z0-9.-]+|\[[0-9a-f:.]+\]", re.ASCII)
_PORTS: Final = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """The origin of an address for a browser: `https`, or `http` on this machine."""
    try:
        if len(url) > _MAX_URL or not _URL.fullmatch(url):
            raise _bad_address()
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_address() from None
    host = (parts.hostname or "").lower()
    shown = f"[{host}]" if ":" in host else host
    if parts.scheme not in _PORTS or not _HOST.fullmatch(shown) or "@" in parts.netloc:
        raise _bad_address()
    if parts.scheme == "http" and not is_loopback(host):
        raise _bad_address()
    suffix = "" if port in (None, _PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{shown}{suffix}"


def with_query(url: str, **members: str) -> str:
    """An address with members set in its query."""
    parts = urlsplit(url)
    query = [pair for pair in parse_qsl(parts.query, True) if pair[0] not in members]
    return urlunsplit(parts._replace(query=urlencode([*query, *members.items()])))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bad_address() -> AuthorityError:
    return AuthorityError(
        Code.BAD_REQUEST,
        "a login cannot end at this address",
        where="/redirectTo",
        mend="give an https address without a fragment, or http on this machine",
    )
