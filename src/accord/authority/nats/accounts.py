"""The accounts of a NATS system, its keys and credentials, and connections to it.

A server checks the subject of a message, but not its reply subject, to which JetStream answers
anything it is asked. So sessions are in one account and JetStream in another, which they reach
through one import, whose responses go no further than the account of sessions. The keys of the
embedded server are created once; those of an external system are read from a folder.
"""

import asyncio
import os
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import orjson
import structlog
from nats.aio.client import Client, RawCredentials
from nats.errors import Error as NatsError

from accord.authority.rules import jwt
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.jwt import KeyType, NKey, XKey
from accord.fabric.link import NatsClient
from accord.kernel.files import create_private

_log = structlog.stdlib.get_logger(__name__)

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
    """A NATS system, as its authority sees it. Accounts are given by their public keys."""

    urls: tuple[str, ...]  # for sessions
    account: str
    account_key: NKey
    callout_account: str
    callout_key: NKey
    callout: Credentials  # the user that answers the callout
    authority: Credentials  # of its own services, unlimited in the account of sessions
    sentinel: Credentials  # that sessions connect as until the callout has answered
    xkey: XKey | None = None  # decrypts callout requests, if the servers encrypt them
    system: Credentials | None = None  # of the system account, to list and end connections
    local: tuple[str, ...] = ()  # for the authority itself, if other than `urls`
    websocket_urls: tuple[str, ...] = ()  # for sessions in browsers
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


def read_cluster(
    urls: tuple[str, ...], folder: Path, websocket_urls: tuple[str, ...] = ()
) -> Cluster:
    """An external system whose keys are in a folder that only its owner may read.

    The folder holds `account.nk` and `callout.nk` (the seeds of those accounts, or of keys that
    sign for them), `authority.creds`, `callout.creds`, `sentinel.creds`, and where they are used
    `xkey.nk`, `system.creds` and `ca.pem`.
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
        websocket_urls=websocket_urls,
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


STREAM_EXPORTS: Final = (
    {"name": "jetstream", "subject": ">", "type": "service", "response_type": "Singleton"},
)
"""What the account of streams gives: itself, to whoever names its key in an import."""

_STORED: Final = ("events.>", "trellis.>", "$KV.>", "$O.>")
_ASKED: Final = ("$JS.API.>", "$JS.ACK.>")


def session_imports(streams: str) -> list[dict[str, Any]]:
    """What the account of sessions imports from that of streams, given by its public key.

    `$JS.API` is imported whole: for anything less the server would also answer for an account
    that has no JetStream. What a session may send there is up to its permissions.
    """
    return [
        {"name": subject, "subject": subject, "account": streams, "type": "service"}
        for subject in (*_ASKED, *_STORED)
    ]


_ANSWER_SECONDS: Final = 2.0
_API: Final = "$JS.API.>"


async def find_account_fault(system: Client, account: str) -> str | None:
    """What is wrong with the accounts; None if nothing is.

    `system` is a connection of the system account; a client must have connected to `account`.
    """
    sessions = await _account_info(system, account)
    if sessions.get("jetstream_enabled"):
        return (
            "the account of sessions has JetStream enabled, which only the account of streams may"
            " have"
        )
    sources = {
        each.get("account")
        for each in sessions.get("imports") or ()
        if each.get("subject") == _API and each.get("type") == "service"
    }
    for source in sources:
        given = (await _account_info(system, str(source))).get("exports") or ()
        if [
            (each.get("subject"), each.get("response_type")) for each in given
        ] != _EXPECTED_EXPORTS:
            return "the account of streams must have exactly one export, of all subjects"
    return None if sources else "the account of sessions does not import the JetStream API"


_EXPECTED_EXPORTS: Final = [(each["subject"], each["response_type"]) for each in STREAM_EXPORTS]


async def _account_info(system: Client, account: str) -> dict[str, Any]:
    answer = await system.request(f"$SYS.REQ.ACCOUNT.{account}.INFO", timeout=_ANSWER_SECONDS)
    try:
        body = orjson.loads(answer.data)
    except orjson.JSONDecodeError:
        body = None
    found = body.get("data") if isinstance(body, dict) else None
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class SystemKeys:
    """The keys of a NATS system, each for one purpose."""

    operator: NKey  # signs the accounts
    system: NKey
    account: NKey  # the account of sessions
    streams: NKey  # the account that has JetStream
    callout: NKey
    listener: NKey  # the user that answers the callout
    xkey: XKey  # the server encrypts callout requests to it

    @classmethod
    def load_or_create(cls, folder: Path) -> Self:
        """The keys in a folder; missing ones are created."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _separate_streams(folder)
            if not (folder / "xkey.nk").exists():
                create_private(folder / "xkey.nk", XKey.generate().seed.encode())
            return cls(
                operator=_key(folder / "operator.nk", KeyType.OPERATOR),
                system=_key(folder / "system.nk", KeyType.ACCOUNT),
                account=_key(folder / "account.nk", KeyType.ACCOUNT),
                streams=_key(folder / "streams.nk", KeyType.ACCOUNT),
                callout=_key(folder / "callout.nk", KeyType.ACCOUNT),
                listener=_key(folder / "listener.nk", KeyType.USER),
                xkey=XKey.from_seed(read_private(folder / "xkey.nk")),
            )
        except OSError as error:
            raise AuthorityError(
                Code.UNAVAILABLE,
                f"the keys of the NATS server cannot be stored ({error.strerror})",
                where=str(folder),
                mend="let this user write to the folder",
            ) from error

    def server_jwts(self, now: float) -> tuple[str, dict[str, str]]:
        """The operator's JWT, and those of the accounts by public key."""
        operator = jwt.operator(self.operator, system=self.system.public, now=now)
        admission = {
            "auth_users": [self.listener.public],
            "allowed_accounts": [self.account.public],
            "xkey": self.xkey.public,
        }
        return operator, {
            self.system.public: jwt.account("system", self.system.public, self.operator, now=now),
            self.account.public: jwt.account(
                "accord",
                self.account.public,
                self.operator,
                now=now,
                imports=session_imports(self.streams.public),
            ),
            self.streams.public: jwt.account(
                "streams",
                self.streams.public,
                self.operator,
                now=now,
                jetstream=True,
                exports=STREAM_EXPORTS,
            ),
            self.callout.public: jwt.account(
                "callout", self.callout.public, self.operator, now=now, authorization=admission
            ),
        }

    def callout_user(self, now: float) -> Credentials:
        """The user that answers the callout."""
        token = jwt.user("callout", self.listener.public, self.callout, now=now)
        return Credentials(token, self.listener.seed)

    def sentinel_user(self, now: float) -> Credentials:
        """The user that every session connects as; by itself it may do nothing."""
        return _user("sentinel", self.callout, now, subjects=())

    def authority_user(self, now: float) -> Credentials:
        """The user of the authority's own services."""
        return _user("authority", self.account, now)

    def system_user(self, now: float) -> Credentials:
        """The user that lists and ends connections."""
        return _user("authority", self.system, now)


def _user(
    name: str, account: NKey, now: float, *, subjects: tuple[str, ...] | None = None
) -> Credentials:
    key = NKey.generate(KeyType.USER)
    token = jwt.user(name, key.public, account, now=now, publish=subjects, subscribe=subjects)
    return Credentials(token, key.seed)


def _separate_streams(folder: Path) -> None:
    """Upgrade from one account: it keeps the streams, and sessions get a new one."""
    streams, account = folder / "streams.nk", folder / "account.nk"
    if account.exists() and not streams.exists():
        account.rename(streams)


def _key(file: Path, kind: KeyType) -> NKey:
    if not file.exists():
        create_private(file, NKey.generate(kind).seed.encode())
    return read_key(file, kind)
