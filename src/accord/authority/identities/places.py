"""Addresses that clients name: where a login ends, and the origin that anchors an app. Pure."""

import ipaddress
import re
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from accord.authority.errors import AuthorityError, Code

_LONGEST: Final = 2000
# Only what a URL may hold; a header or a policy could otherwise be broken out of.
_URL: Final = re.compile(r"[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=%]+", re.ASCII)
_HOST: Final = re.compile(r"[a-z0-9.-]+|\[[0-9a-f:.]+\]", re.ASCII)
_PORTS: Final = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """The origin of an address at which a browser may be sent back.

    Raises:
        AuthorityError: It is not `https`, or `http` on this machine; or has a fragment or a user.
    """
    try:
        if len(url) > _LONGEST or not _URL.fullmatch(url):
            raise _refused()
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused() from None
    host = (parts.hostname or "").lower()
    shown = f"[{host}]" if ":" in host else host
    if parts.scheme not in _PORTS or not _HOST.fullmatch(shown) or "@" in parts.netloc:
        raise _refused()
    if parts.scheme == "http" and not _is_loopback(host):
        raise _refused()
    suffix = "" if port in (None, _PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{shown}{suffix}"


def with_query(url: str, **members: str) -> str:
    """An address with members added to its query; one that is there already is replaced."""
    parts = urlsplit(url)
    query = [pair for pair in parse_qsl(parts.query, True) if pair[0] not in members]
    return urlunsplit(parts._replace(query=urlencode([*query, *members.items()])))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refused() -> AuthorityError:
    return AuthorityError(
        Code.BAD_REQUEST,
        "a login cannot end at this address",
        where="/redirectTo",
        mend="give an https address without a fragment, or http on this machine",
    )
