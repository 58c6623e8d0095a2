"""A NATS system as its authority sees it: addresses, signing keys, credentials, connections.

A system has an account of sessions, one that has JetStream, and one for the auth callout. The keys
of an external system are read from a folder.
"""

import asyncio
import os
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
from nats.aio.client import RawCredentials
from nats.errors import Error as NatsError

from accord.authority.rules import jwt
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.nkeys import KeyType, NKey, XKey
from accord.fabric.nats_client import NatsClient

_MAX_FILE_BYTES: Final = 64 * 1024
_JWT: Final = ("-----BEGIN NATS USER JWT-----", "------END NATS USER JWT------")
_SEED: Final = ("-----BEGIN USER NKEY SEED-----", "------END USER NKEY SEED------")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The JWT and seed of a user."""

    jwt: str
    seed: str = field(repr=False)

    @property
    def text(self) -> str:
        """The content of a `.creds` file. Keep it secret."""
        return "\n".join((_JWT[0], self.jwt, _JWT[1], _SEED[0], self.seed, _SEED[1], ""))

    @property
    def account(self) -> str:
        """The account that the user belongs to; `AuthorityError` if the JWT is not valid."""
        claims = jwt.decode(self.jwt, KeyType.ACCOUNT)
        nats = claims.get("nats")
        through = nats.get("issuer_account") if isinstance(nats, dict) else None
        return str(through or claims["iss"])


@dataclass(frozen=True, slots=True)
class Cluster:
    """A NATS system, as its authority sees it.

    Attributes:
        urls: The addresses for sessions.
        account: The public key of the account of sessions.
        account_key: Signs the users of that account.
        callout_account: The public key of the callout's account.
        callout_key: Signs the callout's responses.
        callout: The user that answers the callout.
        authority: The user of the authority's own services, unlimited in the account of sessions.
        sentinel: The user that sessions connect as until the callout has answered.
        xkey: Decrypts callout requests; None if the servers do not encrypt them.
        system: A user of the system account, to list and end connections; None if there is none.
        local: The addresses for the authority itself, if other than `urls`.
        tls: Verifies the servers' certificates; None for the default.
    """

    urls: tuple[str, ...]
    account: str
    account_key: NKey
    callout_account: str
    callout_key: NKey
    callout: Credentials
    authority: Credentials
    sentinel: Credentials
    xkey: XKey | None = None
    system: Credentials | None = None
    local: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def options(self, credentials: Credentials) -> dict[str, Any]:
        """The arguments of `nats.connect` for one of the authority's own users.

        Reconnects for ever, so that a server that comes back finds its authority.
        """
        return {
            "servers": list(self.local or self.urls),
            "user_credentials": RawCredentials(credentials.text),
            "tls": self.tls,
            "max_reconnect_attempts": -1,
            # Short, because sessions that reconnect before their authority are refused.
            "reconnect_time_wait": 0.1,
            "allow_reconnect": True,
        }


def read_cluster(urls: tuple[str, ...], folder: Path) -> Cluster:
    """An external system whose keys are in a folder.

    The folder holds `account.nk` and `callout.nk` (the seeds of those accounts, or of keys that
    sign for them), `authority.creds`, `callout.creds`, `sentinel.creds`, and where they are used
    `xkey.nk`, `system.creds` and `ca.pem`.

    Raises:
        AuthorityError: Something is missing, malformed, or others may read it.
    """
    if not urls:
        raise AuthorityError(Code.BAD_REQUEST, "no address of a NATS server is given")
    callout, authority = (
        _read_credentials(folder / name) for name in ("callout.creds", "authority.creds")
    )
    xkey, system, ca = (folder / name for name in ("xkey.nk", "system.creds", "ca.pem"))
    return Cluster(
        urls=urls,
        account=authority.account,
        account_key=read_key(folder / "account.nk", KeyType.ACCOUNT),
        callout_account=callout.account,
        callout_key=read_key(folder / "callout.nk", KeyType.ACCOUNT),
        callout=callout,
        authority=authority,
        sentinel=_read_credentials(folder / "sentinel.creds"),
        xkey=XKey.from_seed(read_private(xkey)) if xkey.exists() else None,
        system=_read_credentials(system) if system.exists() else None,
        tls=_tls_context(ca) if ca.exists() else None,
    )


def read_key(file: Path, kind: KeyType) -> NKey:
    """The key whose seed a file holds, which only its owner may read."""
    text = read_private(file)
    try:
        return NKey.from_seed(text, kind)
    except AuthorityError as error:
        raise AuthorityError(error.code, error.what, where=str(file), mend=error.mend) from None


def read_private(file: Path) -> str:
    """The text of a file; `AuthorityError` if others than its owner may read it."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_MAX_FILE_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise AuthorityError(
            Code.NOT_FOUND,
            f"the file of a NATS key cannot be read ({getattr(error, 'strerror', None) or error})",
            where=str(file),
            mend="put it there, or restore it from a backup",
        ) from error
    if mode & 0o077:
        raise AuthorityError(
            Code.FORBIDDEN,
            f"the file may be read by others (mode {stat.S_IMODE(mode):04o})",
            where=str(file),
            mend=f"run `chmod 600 {file}`",
        )
    return text.strip()


def _tls_context(file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"this is not a file of certificates ({error.strerror or error})",
            where=str(file),
            mend="put the PEM certificate of the servers' issuer there",
        ) from error


def _read_credentials(file: Path) -> Credentials:
    lines = [line.strip() for line in read_private(file).splitlines()]
    try:
        token = lines[lines.index(_JWT[0]) + 1]
        seed = lines[lines.index(_SEED[0]) + 1]
    except (ValueError, IndexError):
        raise AuthorityError(
            Code.BAD_REQUEST,
            "this is not a credentials file of NATS",
            where=str(file),
            mend="write it with `nsc generate creds`",
        ) from None
    NKey.from_seed(seed, KeyType.USER)
    return Credentials(token, seed)


_log = structlog.stdlib.get_logger(__name__)

_CONNECT_SECONDS: Final = 10.0


async def connect(name: str, cluster: Cluster, user: Credentials, **options: Any) -> NatsClient:
    """Connect as one of the authority's users for a purpose; a lost connection is restored."""
    problem: Exception | None = None

    async def tell(error: Exception) -> None:
        nonlocal problem
        if repr(error) != repr(problem):  # while a server is away, every attempt says the same
            _log.warning("a connection to NATS has a problem", purpose=name, why=repr(error))
        problem = error

    arguments: dict[str, Any] = {
        "error_cb": tell,
        "name": f"accord {name}",
        **cluster.options(user),
        **options,
    }
    client = NatsClient()
    try:
        # The first attempt fails instead of being repeated for ever.
        async with asyncio.timeout(_CONNECT_SECONDS):
            await client.connect(**arguments)
    except (OSError, NatsError, TimeoutError) as error:
        await client.close()
        raise AuthorityError(
            Code.UNAVAILABLE,
            f"NATS refuses the authority's connection to {name} ({problem or error!r})",
            where=", ".join(arguments["servers"]),
            mend="check the address and the credentials",
        ) from error
    return client
