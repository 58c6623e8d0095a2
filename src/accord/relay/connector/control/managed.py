"""Managed tokens: RS256 JSON Web Tokens that speak for one instance (section 3).

Owns which tokens are believed. Keys come from the operator's own file and from nowhere else:
whatever a token says about where its key may be found is not looked at, and no algorithm but RS256
is tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from accord.kernel import canonical
from accord.relay.connector.control.names import is_name
from accord.relay.errors import Code, RelayError

_AUDIENCE: Final = "agent:"
_LEAST_BITS: Final = 2048
_MOST_KEYS: Final = 32
_MOST_BYTES: Final = 16_384
_LEEWAY: Final = 5
_LATEST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Claims:
    """What a managed token proves: `issued_at` in seconds since the epoch."""

    tenant: str
    instance: str
    issued_at: int


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that may sign managed tokens; without an id it is tried for every token."""

    key: RSAPublicKey
    kid: str | None = None


class ManagedTokens:
    """Verifies managed tokens against a fixed list of keys.

    Args:
        keys: The operator's keys; without any no token is believed.
        tenant_claim: The claim that names the tenant.
        issuer: The `iss` to insist on; empty for none.
    """

    def __init__(
        self, keys: Sequence[PublicKey] = (), *, tenant_claim: str = "tenant", issuer: str = ""
    ) -> None:
        self._keys = tuple(keys)
        self._tenant_claim = tenant_claim
        self._issuer = issuer

    def verify(self, token: str, now: float) -> Claims:
        """What the token proves.

        Raises:
            RelayError: `expired` when that is all that is wrong with it, else `unauthorized`.
        """
        claims = self._claims(token)
        audience, tenant = claims.get("aud"), claims.get(self._tenant_claim)
        expiry, issued = claims.get("exp"), claims.get("iat")
        if not isinstance(audience, str) or not audience.startswith(_AUDIENCE):
            raise _refused("its audience is not one instance")
        instance = audience.removeprefix(_AUDIENCE)
        if not is_name(instance) or not is_name(tenant):
            raise _refused("it names no instance or no tenant")
        if self._issuer and claims.get("iss") != self._issuer:
            raise _refused("its issuer is not the configured one")
        if not _is_time(expiry) or not _is_time(issued):
            raise _refused("it has no exp or no iat")
        if issued > now + _LEEWAY or ("nbf" in claims and not _begun(claims["nbf"], now)):
            raise _refused("it is not valid yet")
        if now > expiry:
            raise RelayError(Code.EXPIRED, "the managed token has expired", mend="get a fresh one")
        return Claims(tenant, instance, int(issued))

    def _claims(self, token: str) -> Mapping[str, Any]:
        if len(token) > _MOST_BYTES or not token.isascii():
            raise _refused("it is too long, or not a JSON Web Token")
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except (jwt.PyJWTError, RecursionError):  # the library reads nested brackets recursively
            raise _refused("it is not a JSON Web Token") from None
        for known in self._keys:
            if known.kid is None or kid is None or known.kid == kid:
                try:
                    # Times are checked by `verify`, against the clock that the server was given.
                    return jwt.decode(
                        token,
                        known.key,
                        algorithms=["RS256"],
                        options={
                            "verify_exp": False,
                            "verify_nbf": False,
                            "verify_iat": False,
                            "verify_aud": False,
                            "verify_iss": False,
                            "verify_sub": False,
                            "verify_jti": False,
                        },
                    )
                except (jwt.PyJWTError, RecursionError):
                    continue
        raise _refused("no configured key signed it")


def load_keys(path: Path) -> list[PublicKey]:
    """Read the operator's keys: a JWKS, or one PEM public key after the other.

    Raises:
        RelayError: The file cannot be read or holds something that is not an RSA key of at least
            2048 bits.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _unusable(path, f"the file cannot be read ({error.strerror})") from error
    if len(raw) > 1 << 20:
        raise _unusable(path, "the file is larger than 1 MiB")
    keys = _from_pem(raw) if raw.lstrip().startswith(b"-----") else _from_jwks(raw)
    if keys is None or not 0 < len(keys) <= _MOST_KEYS:
        raise _unusable(path, f"the file does not hold between 1 and {_MOST_KEYS} RSA public keys")
    for known in keys:
        if known.key.key_size < _LEAST_BITS:
            raise _unusable(path, f"a key has fewer than {_LEAST_BITS} bits")
    return keys


def _from_pem(raw: bytes) -> list[PublicKey] | None:
    end = b"-----END PUBLIC KEY-----"
    blocks = [block + end for block in raw.split(end)[:-1]]
    try:
        keys = [load_pem_public_key(block.strip()) for block in blocks]
    except (ValueError, UnsupportedAlgorithm):
        return None
    return [PublicKey(key) for key in keys if isinstance(key, RSAPublicKey)]


def _from_jwks(raw: bytes) -> list[PublicKey] | None:
    try:
        document = canonical.decode(raw)
        listed = document["keys"]
        keys = []
        for entry in listed:
            if entry.get("kty") != "RSA" or entry.get("use", "sig") != "sig" or "d" in entry:
                continue
            key = jwt.PyJWK(entry, algorithm="RS256").key
            kid = entry.get("kid")
            keys.append(PublicKey(key, kid if isinstance(kid, str) else None))
    except (canonical.CanonicalError, KeyError, TypeError, AttributeError, ValueError):
        return None
    except jwt.PyJWTError:
        return None
    return keys


def _is_time(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LATEST


def _begun(value: Any, now: float) -> bool:
    return _is_time(value) and value <= now + _LEEWAY


def _refused(why: str) -> RelayError:
    return RelayError(Code.UNAUTHORIZED, f"the managed token is not believed: {why}")


def _unusable(path: Path, what: str) -> RelayError:
    return RelayError(
        Code.BAD_REQUEST, what, where=str(path), mend="give a JWKS or PEM file of RSA public keys"
    )
