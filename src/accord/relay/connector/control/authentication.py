"""Who a bearer is: by a gateway's own secret, or by a managed token (sections 2 and 3).

Owns the order in which a token is doubted. Whatever is wrong with it, whoever does not hold the
secret learns only "unauthorized", and unknown gateways cost as much as known ones.
"""

import base64
import binascii
from typing import Final

from accord.kernel import tokens
from accord.kernel.clock import Clock
from accord.relay.connector.control import loading
from accord.relay.connector.control.cache import Cache
from accord.relay.connector.control.directory import Principal
from accord.relay.connector.control.keyring import Keyring
from accord.relay.connector.control.managed import Claims, ManagedTokens
from accord.relay.connector.control.names import is_name
from accord.relay.connector.control.settings import ControlSettings
from accord.relay.errors import Code, RelayError

_LONGEST: Final = 4096
# Tried where there is no record, so that the time taken does not tell.
_NOBODY: Final = ("0" * 43,)


class Authentication:
    """Believes tokens, or does not."""

    def __init__(
        self,
        cache: Cache,
        keyring: Keyring,
        managed: ManagedTokens,
        settings: ControlSettings,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._keyring = keyring
        self._managed = managed
        self._settings = settings
        self._clock = clock

    async def by_secret(self, bearer: str | None) -> Principal:
        """Who shows an upgrade token.

        Raises:
            RelayError: `unauthorized`; or, where the secret is right, `expired` or, of a gateway
                that was revoked, `forbidden`.
        """
        if not bearer or len(bearer) > _LONGEST:
            raise _unauthorized()
        expiry = tokens.expiry(bearer)
        gateway_id = _claimed(bearer)
        if expiry is None or not is_name(gateway_id):
            raise _unauthorized()
        if not self._cache.is_fresh:
            await self._cache.refresh()
        found = await self._cache.get(
            ("gateway", gateway_id),
            lambda connection: loading.gateway(connection, self._keyring, gateway_id),
            keep_missing=False,
        )
        now = self._clock.now()
        secrets = [
            secret
            for secret, end in (found.secrets if found else ())
            if end is None or now * 1000 < end
        ]
        # The expiry is looked at only once the secret is known to be right.
        if tokens.verify(bearer, secrets or _NOBODY, 0) != gateway_id or not secrets or not found:
            raise _unauthorized()
        if not found.record.live:
            raise RelayError(Code.FORBIDDEN, "this gateway was revoked")
        if not self._settings.endless_tokens and (
            expiry == tokens.NEVER or expiry > now + self._settings.token_seconds
        ):
            raise RelayError(
                Code.UNAUTHORIZED,
                "the token would be valid for too long",
                mend=f"let it expire within {self._settings.token_seconds} seconds",
            )
        if expiry != tokens.NEVER and now > expiry:
            raise RelayError(Code.EXPIRED, "the token has expired", mend="make a fresh one")
        return Principal(
            found.record.tenant, found.record.instance, found.record.gateway_id, "secret"
        )

    def claims(self, bearer: str | None) -> Claims:
        """What a managed token proves, whether or not there is a record of its instance."""
        if not bearer:
            raise _unauthorized()
        return self._managed.verify(bearer, self._clock.now())

    async def by_either(self, bearer: str | None) -> Principal:
        """Who shows an upgrade token or a managed token: the management routes take both."""
        if bearer is None or bearer.count(".") != 2:  # which base64url does not have
            return await self.by_secret(bearer)
        claims = self.claims(bearer)
        if not self._cache.is_fresh:
            await self._cache.refresh()
        profile = await self._cache.get(
            ("instance", claims.instance),
            lambda connection: loading.profile(connection, claims.instance),
            keep_missing=False,
        )
        if profile is None or profile.record.tenant != claims.tenant:
            raise _unauthorized()
        if not profile.record.live:
            raise RelayError(Code.FORBIDDEN, "this instance was revoked")
        return Principal(claims.tenant, claims.instance, profile.record.gateway_id, "managed")


def _claimed(bearer: str) -> str | None:
    """The gateway that a token says it is of, unverified."""
    bare = bearer.rstrip("=")
    try:
        raw = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
        return raw.rsplit(b":", 2)[0].decode()
    except (binascii.Error, ValueError):
        return None


def _unauthorized() -> RelayError:
    return RelayError(Code.UNAUTHORIZED, "the token is missing or not good")
