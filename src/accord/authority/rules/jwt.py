"""NATS JWTs, signed with `ed25519-nkey`: operators, accounts, users and callout responses."""

import base64
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.nkeys import KeyType, NKey, verify_signature
from accord.kernel import base64url, canonical

EVERYTHING: Final = ">"
_HEADER: Final = base64url.encode(b'{"typ":"JWT","alg":"ed25519-nkey"}')
_VERSION: Final = 2
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT: Final = {
    **_UNLIMITED,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
_JETSTREAM: Final = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


def encode(claims: Mapping[str, Any], key: NKey) -> str:
    """Sign claims."""
    body = {**claims, "iss": key.public}
    digest = hashlib.sha256(canonical.encode(body)).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_HEADER}.{base64url.encode(canonical.encode(body))}"
    return f"{signed}.{base64url.encode(key.sign(signed.encode()))}"


def decode(token: str, issuer: KeyType) -> dict[str, Any]:
    """The claims of a token; `AuthorityError` unless an issuer of that kind has signed them."""
    try:
        _, body, signature = token.split(".")
        claims = canonical.decode(base64url.decode(body))
        signed = base64url.decode(signature)
    except (ValueError, base64url.Base64Error, canonical.CanonicalError):
        raise AuthorityError(Code.BAD_REQUEST, "this is not a JWT of NATS") from None
    if not isinstance(claims, dict) or not isinstance(claims.get("iss"), str):
        raise AuthorityError(Code.BAD_REQUEST, "this JWT names no issuer")
    if not verify_signature(claims["iss"], issuer, token.rpartition(".")[0].encode(), signed):
        raise AuthorityError(Code.INVALID_PROOF, "this JWT is not signed by its issuer")
    return claims


def operator(key: NKey, *, system: str, now: float) -> str:
    """The operator's JWT, which every server of a system is configured with."""
    nats = {"type": "operator", "version": _VERSION, "system_account": system}
    return encode({"name": "accord", "sub": key.public, "iat": int(now), "nats": nats}, key)


def account(
    name: str,
    subject: str,
    operator_key: NKey,
    *,
    now: float,
    jetstream: bool = False,
    authorization: Mapping[str, Any] | None = None,
    exports: Sequence[Mapping[str, Any]] = (),
    imports: Sequence[Mapping[str, Any]] = (),
) -> str:
    """An account's JWT; `now` is in seconds.

    Args:
        subject: The account's public key.
        authorization: The callout that admits to it: `auth_users`, `allowed_accounts`, `xkey`.
    """
    nats: dict[str, Any] = {
        "type": "account",
        "version": _VERSION,
        "limits": {**_ACCOUNT, **(_JETSTREAM if jetstream else {})},
        "default_permissions": {"pub": {}, "sub": {}},
    }
    if authorization is not None:
        nats["authorization"] = dict(authorization)
    if exports:
        nats["exports"] = [dict(each) for each in exports]
    if imports:
        nats["imports"] = [dict(each) for each in imports]
    return encode({"name": name, "sub": subject, "iat": int(now), "nats": nats}, operator_key)


def user(
    name: str,
    subject: str,
    account_key: NKey,
    *,
    now: float,
    account_id: str | None = None,
    publish: Collection[str] | None = None,
    subscribe: Collection[str] | None = None,
    expires_at: float | None = None,
    tags: Collection[str] = (),
) -> str:
    """A user's JWT; `now` is in seconds.

    Args:
        name: Shown by the server in its advisories.
        subject: The user's public key.
        account_key: The account's key, or one that signs for the account.
        account_id: The account, if a signing key of it signs.
        publish: The subjects that it may publish to; None for all.
        subscribe: The subjects that it may subscribe to; None for all.
        expires_at: When the server ends the connection.
    """
    nats: dict[str, Any] = {
        "type": "user",
        "version": _VERSION,
        **_UNLIMITED,
        "pub": _permission(publish),
        "sub": _permission(subscribe),
    }
    if account_id is not None and account_id != account_key.public:
        nats["issuer_account"] = account_id
    if tags:
        nats["tags"] = list(tags)
    claims: dict[str, Any] = {"name": name, "sub": subject, "iat": int(now), "nats": nats}
    if expires_at is not None:
        claims["exp"] = int(expires_at)
    return encode(claims, account_key)


def callout_response(
    key: NKey,
    *,
    server: str,
    user_key: str,
    now: float,
    account_id: str | None = None,
    jwt: str | None = None,
    error: str | None = None,
) -> str:
    """The response of a callout to a server: a user's JWT, or the error."""
    nats: dict[str, Any] = {"type": "authorization_response", "version": _VERSION}
    if account_id is not None and account_id != key.public:
        nats["issuer_account"] = account_id
    if jwt is not None:
        nats["jwt"] = jwt
    if error is not None:
        nats["error"] = error
    return encode({"sub": user_key, "aud": server, "iat": int(now), "nats": nats}, key)


def _permission(allowed: Collection[str] | None) -> dict[str, Any]:
    # An empty list of allowed subjects would permit everything.
    if allowed is None:
        return {}
    return {"allow": sorted(allowed)} if allowed else {"deny": [EVERYTHING]}
