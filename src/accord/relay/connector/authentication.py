"""Authentication of gateways: by their own secret, or by a managed token (RS256 JSON Web Token).

Without the secret a caller learns only "unauthorized", and an unknown gateway takes as much time as
a known one. Keys for managed tokens come from the operator's file only.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from accord.kernel import canonical, tokens
from accord.kernel.clock import Clock
from accord.relay.connector import gate_facts
from accord.relay.connector.gate_facts import Cache
from accord.relay.connector.registry import ManagedClaims
from accord.relay.connector.settings import ControlSettings
from accord.relay.connector.store import Principal
from accord.relay.connector.vault import Keyring
from accord.relay.errors import Code, RelayError
from accord.relay.rules.connection import CloseReason
from accord.relay.rules.members import is_name

_REASONS: Final = {Code.EXPIRED: CloseReason.EXPIRED, Code.FORBIDDEN: CloseReason.REVOKED}


def close_reason(error: RelayError) -> CloseReason:
    """The reason with which a refused socket is closed."""
    return _REASONS.get(error.code, CloseReason.UNAUTHORIZED)


_AUDIENCE: Final = "agent:"
_LEAST_BITS: Final = 2048
_MOST_KEYS: Final = 32
_MOST_BYTES: Final = 16_384
_LEEWAY: Final = 5
_LATEST: Final = 1e12


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that may sign managed tokens; without an id it is tried for every token."""

    key: RSAPublicKey
    kid: str | None = None


@dataclass(eq=False, repr=False)
class ManagedTokens:
    """Verifies managed tokens against a fixed list of keys; without keys it refuses all.

    An empty `issuer` accepts any `iss`.
    """

    keys: Sequence[PublicKey] = ()
    _: KW_ONLY
    tenant_claim: str = "tenant"
    issuer: str = ""

    def verify(self, token: str, now: float) -> ManagedClaims:
        """The claims of a valid token.

        Raises:
            RelayError: `expired` when nothing else is wrong with it, else `unauthorized`.
        """
        claims = self._claims(token)
        audience, tenant = claims.get("aud"), claims.get(self.tenant_claim)
        expiry, issued = claims.get("exp"), claims.get("iat")
        if not isinstance(audience, str) or not audience.startswith(_AUDIENCE):
            raise _refused("its audience is not one instance")
        instance = audience.removeprefix(_AUDIENCE)
        if not is_name(instance) or not is_name(tenant):
            raise _refused("it names no instance or no tenant")
        if self.issuer and claims.get("iss") != self.issuer:
            raise _refused("its issuer is not the configured one")
        if not _is_time(expiry) or not _is_time(issued):
            raise _refused("it has no exp or no iat")
        if issued > now + _LEEWAY or ("nbf" in claims and not _begun(claims["nbf"], now)):
            raise _refused("it is not valid yet")
        if now > expiry:
            raise RelayError(Code.EXPIRED, "the managed token has expired", mend="get a fresh one")
        return ManagedClaims(tenant, instance, int(issued))

    def _claims(self, token: str) -> Mapping[str, Any]:
        if len(token) > _MOST_BYTES or not token.isascii():
            raise _refused("it is too long, or not a JSON Web Token")
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except (jwt.PyJWTError, RecursionError):  # the library reads nested brackets recursively
            raise _refused("it is not a JSON Web Token") from None
        for known in self.keys:
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


def load_managed_keys(path: Path) -> list[PublicKey]:
    """Read the operator's keys: a JWKS, or concatenated PEM public keys.

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
    return RelayError(Code.UNAUTHORIZED, f"the managed token is not valid: {why}")


def _unusable(path: Path, what: str) -> RelayError:
    return RelayError(
        Code.BAD_REQUEST, what, where=str(path), mend="give a JWKS or PEM file of RSA public keys"
    )


_LONGEST: Final = 4096
# Tried where there is no record, so that the response time does not reveal it.
_DUMMY: Final = ("0" * 43,)


@dataclass(eq=False, repr=False)
class Authentication:
    """Verifies upgrade tokens and managed tokens."""

    cache: Cache
    keyring: Keyring
    managed: ManagedTokens
    settings: ControlSettings
    clock: Clock

    async def by_secret(self, bearer: str | None) -> Principal:
        """The principal of an upgrade token.

        Raises:
            RelayError: `unauthorized`; where the secret is right, `expired`, or `forbidden` for a
                revoked gateway.
        """
        if not bearer or len(bearer) > _LONGEST:
            raise _unauthorized()
        expiry = tokens.expiry(bearer)
        gateway_id = claimed_gateway(bearer)
        if expiry is None or not is_name(gateway_id):
            raise _unauthorized()
        if not self.cache.is_fresh:
            await self.cache.refresh()
        found = await self.cache.get(
            ("gateway", gateway_id),
            lambda connection: gate_facts.read_gateway(connection, self.keyring, gateway_id),
            keep_missing=False,
        )
        now = self.clock.now()
        secrets = [
            secret
            for secret, end in (found.secrets if found else ())
            if end is None or now * 1000 < end
        ]
        # The expiry is checked only after the secret.
        if tokens.verify(bearer, secrets or _DUMMY, 0) != gateway_id or not secrets or not found:
            raise _unauthorized()
        if not found.record.live:
            raise RelayError(Code.FORBIDDEN, "this gateway was revoked")
        if not self.settings.endless_tokens and (
            expiry == tokens.NEVER or expiry > now + self.settings.token_seconds
        ):
            raise RelayError(
                Code.UNAUTHORIZED,
                "the token would be valid for too long",
                mend=f"let it expire within {self.settings.token_seconds} seconds",
            )
        if expiry != tokens.NEVER and now > expiry:
            raise RelayError(Code.EXPIRED, "the token has expired", mend="make a fresh one")
        return Principal(
            found.record.tenant, found.record.instance, found.record.gateway_id, "secret"
        )

    def claims(self, bearer: str | None) -> ManagedClaims:
        """The claims of a managed token, whether or not there is a record of its instance."""
        if not bearer:
            raise _unauthorized()
        return self.managed.verify(bearer, self.clock.now())

    async def by_either(self, bearer: str | None) -> Principal:
        """The principal of an upgrade token or a managed token, for the management routes."""
        if bearer is None or bearer.count(".") != 2:  # which base64url does not have
            return await self.by_secret(bearer)
        claims = self.claims(bearer)
        if not self.cache.is_fresh:
            await self.cache.refresh()
        profile = await self.cache.get(
            ("instance", claims.instance),
            lambda connection: gate_facts.read_instance(connection, claims.instance),
            keep_missing=False,
        )
        if profile is None or profile.record.tenant != claims.tenant:
            raise _unauthorized()
        if not profile.record.live:
            raise RelayError(Code.FORBIDDEN, "this instance was revoked")
        return Principal(claims.tenant, claims.instance, profile.record.gateway_id, "managed")


def claimed_gateway(bearer: str) -> str | None:
    """The gateway id in a token, unverified."""
    bare = bearer.rstrip("=")
    try:
        raw = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
        return raw.rsplit(b":", 2)[0].decode()
    except (binascii.Error, ValueError):
        return None


def _unauthorized() -> RelayError:
    return RelayError(Code.UNAUTHORIZED, "the token is missing or not valid")
