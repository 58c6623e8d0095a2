"""The accounts of a NATS system: sessions are in one, JetStream in another.

A server checks the subject of a message, but not its reply subject, to which JetStream answers
anything it is asked. So sessions reach JetStream through one import, whose responses go no further
than the account of sessions. The keys of the embedded server are created once and stored in a
folder; an external system is asked whether its accounts are separate.
"""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import orjson
from nats.aio.client import Client

from accord.authority.nats.cluster import Credentials, read_key, read_private
from accord.authority.rules import jwt
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.nkeys import KeyType, NKey, XKey
from accord.kernel.files import sync_folder, write_private

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
        return "the account of sessions has JetStream itself"
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
            return "the account of streams has other exports than the one of everything"
    return None if sources else "the account of sessions imports no JetStream"


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
    """The keys of a NATS system, each for one purpose.

    Attributes:
        operator: Signs the accounts.
        system: The system account.
        account: The account of sessions.
        streams: The account that has JetStream.
        callout: The account of the auth callout.
        listener: The user that answers the callout, named in the JWT of its account.
        xkey: The server encrypts callout requests to this key.
    """

    operator: NKey
    system: NKey
    account: NKey
    streams: NKey
    callout: NKey
    listener: NKey
    xkey: XKey

    @classmethod
    def load_or_create(cls, folder: Path) -> Self:
        """The keys in a folder; missing ones are created.

        Raises:
            AuthorityError: A file cannot be read or written, or others may read it.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _separate_streams(folder)
            if not (folder / "xkey.nk").exists():
                _create(folder / "xkey.nk", XKey.generate().seed)
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
        _create(file, NKey.generate(kind).seed)
    return read_key(file, kind)


def _create(file: Path, text: str) -> None:
    """Create a file atomically; never replaces one."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        write_private(draft, text.encode())
        os.link(draft, file)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(file.parent)
