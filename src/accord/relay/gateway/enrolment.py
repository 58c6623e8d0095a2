"""Enrolment of a gateway, and the file with its credentials, which only its owner can read.

A token can be spent once, so the file is created before. No error shows a token or a secret.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx

from accord.kernel import canonical, tokens
from accord.kernel.files import sync_folder
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.settings import state_folder
from accord.relay.rules.connection import http_url
from accord.web import outgoing
from accord.web.outgoing import ResponseError

CREDENTIALS_FILE: Final = "credentials.json"
_SCHEMES: Final = ("http://", "https://", "ws://", "wss://")
_SECONDS: Final = 30.0
_MOST_BYTES: Final = 64 * 1024
_CODES: Final = {code.value: code for code in Code}


@dataclass(frozen=True, slots=True)
class GatewayCredentials:
    """What identifies a gateway to its connector."""

    url: str
    gateway_id: str
    tenant: str
    secret: str = field(repr=False)
    delivery_key: str = field(repr=False, default="")
    # While a rotation is under way: the new secret, and its id at the connector.
    pending: str = field(repr=False, default="")
    pending_id: str = ""


def credentials_file(gateway_id: str) -> Path:
    """The default path of a gateway's credentials."""
    name = quote(gateway_id, safe="")
    if name.startswith("."):
        # Quoting leaves dots as they are, and `..` would be another folder.
        name = "%2E" + name[1:]
    return state_folder() / name / CREDENTIALS_FILE


def credentials_files() -> list[Path]:
    """The credentials of this user's gateways."""
    return sorted(state_folder().glob(f"*/{CREDENTIALS_FILE}"))


def is_private(url: str) -> bool:
    """Whether the connection to a connector is private: by TLS, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme.lower() in ("https", "wss") or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


async def enrol(
    url: str,
    token: str,
    gateway_id: str,
    file: Path,
    *,
    wake_url: str | None = None,
    replace: bool = False,
) -> GatewayCredentials:
    """Spend an enrolment token, and store the credentials in a file.

    Args:
        url: The connector, such as `https://connector.example`.
        gateway_id: Unique at that connector.
        wake_url: What the connector requests to wake this gateway when it is suspended.
        replace: Whether to replace older credentials.

    Raises:
        RelayError: The file cannot be created or exists, the connector does not answer, or it
            refuses; nothing is stored then.
    """
    if not url.lower().startswith(_SCHEMES):
        raise RelayError(
            Code.BAD_REQUEST,
            "this is not the address of a connector",
            where=url[:200],
            mend="use https://",
        )
    with _new_file(file, replace) as draft:
        asked = {"enrollmentToken": token, "gatewayId": gateway_id}
        if wake_url is not None:
            asked["wakeUrl"] = wake_url
        answer = await _post(http_url(url, "/relay/enroll"), asked)
        given = [answer.get(name) for name in ("gatewayId", "tenant", "secret", "deliveryKey")]
        if not all(isinstance(value, str) for value in given) or not all(given[:3]):
            raise _unexpected(url)
        made = GatewayCredentials(url, *map(str, given))
        _write(draft, made)
    return made


def load_credentials(file: Path) -> GatewayCredentials:
    """Read the file that `enrol` wrote; raises RelayError if it is unsafe or damaged."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            raw = opened.read(_MOST_BYTES)
    except OSError as error:
        raise RelayError(
            Code.NOT_FOUND,
            f"the credentials cannot be read ({error.strerror})",
            where=str(file),
            mend="enrol the gateway first",
        ) from error
    if mode & 0o077:
        raise RelayError(
            Code.BAD_REQUEST,
            f"the credentials may be read by others (mode {stat.S_IMODE(mode):04o})",
            where=str(file),
            mend=f"run `chmod 600 {file}`",
        )
    try:
        return GatewayCredentials(
            **{name: _text(value) for name, value in canonical.decode(raw).items()}
        )
    except (canonical.CanonicalError, AttributeError, TypeError):
        raise RelayError(
            Code.BAD_REQUEST,
            "the file holds no gateway's credentials",
            where=str(file),
            mend="enrol the gateway anew",
        ) from None


@contextlib.contextmanager
def _new_file(file: Path, replace: bool) -> Iterator[int]:
    """A file descriptor to write to; the file gets its name when the block succeeds."""
    if file.exists() and not replace:
        raise RelayError(
            Code.CONFLICT,
            "there are credentials already",
            where=str(file),
            mend="choose another gateway id, or replace them",
        )
    is_kept = file.parent.exists()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        draft = Path(name)  # which only its owner can read
        try:
            yield descriptor
            os.fsync(descriptor)
            draft.replace(file)
            is_kept = True
            sync_folder(file.parent)
        finally:
            os.close(descriptor)
            draft.unlink(missing_ok=True)
            if not is_kept:
                file.parent.rmdir()
    except OSError as error:
        raise RelayError(
            Code.INTERNAL_ERROR,
            f"the credentials cannot be kept ({error.strerror})",
            where=str(file),
            mend="name another file",
        ) from error


async def rotate(known: GatewayCredentials, file: Path, now: float) -> GatewayCredentials:
    """Get a new secret and store it in the file; the old one stays good for a while.

    Whenever this process dies, the file holds a secret that is good: the new one is stored beside
    the old one before it is confirmed, and replaces it afterwards. `settle` ends what was cut off.

    Raises:
        RelayError: The file cannot be written, the connector does not answer, or it refuses.
    """
    known = await settle(known, file, now)
    with _new_file(file, replace=True) as draft:
        answer = await _post(_rotation(known), {"prepare": True}, _bearer(known, now))
        secret, secret_id = answer.get("secret"), answer.get("secretId")
        if not isinstance(secret, str) or not isinstance(secret_id, str):
            raise RelayError(
                Code.UNAVAILABLE,
                "the connector cannot rotate safely",
                where=known.url,
                mend="update it, or let its operator rotate",
            )
        both = replace(known, pending=secret, pending_id=secret_id)
        _write(draft, both)
    return await settle(both, file, now)


async def settle(known: GatewayCredentials, file: Path, now: float) -> GatewayCredentials:
    """End a rotation that was cut off: confirm the new secret, or drop it if that is too late.

    Raises:
        RelayError: The file cannot be written, or the connector does not answer.
    """
    if not known.pending:
        return known
    new = replace(known, secret=known.pending, pending="", pending_id="")
    try:
        await _post(_rotation(known), {"confirm": known.pending_id}, _bearer(new, now))
    except RelayError as error:
        if error.code not in (Code.UNAUTHORIZED, Code.NOT_FOUND):
            raise
        # It was not confirmed in time, so that the old one has not ended.
        new = replace(known, pending="", pending_id="")
    with _new_file(file, replace=True) as draft:
        _write(draft, new)
    return new


async def store_secret(
    known: GatewayCredentials, secret: str, file: Path, now: float
) -> GatewayCredentials:
    """Store a secret that the connector's operator has handed over, once it is known to be good.

    Raises:
        RelayError: The file cannot be written, the connector does not answer, or it refuses.
    """
    new = replace(known, secret=secret, pending="", pending_id="")
    with _new_file(file, replace=True) as draft:
        await _ask("GET", http_url(known.url, "/manage/status"), None, _bearer(new, now))
        _write(draft, new)
    return new


class StoredSecret:
    """The secret in a file, read anew for each dial, so that a rotation needs no restart.

    While a rotation is cut off, both secrets are tried in turn: one of them is good.
    """

    def __init__(self, file: Path, known: GatewayCredentials) -> None:
        self._file = file
        self._known = known
        self._dials = 0

    def __call__(self) -> str:
        """The secret to dial with."""
        with contextlib.suppress(RelayError):
            self._known = load_credentials(self._file)
        self._dials += 1
        known = self._known
        return known.pending if known.pending and self._dials % 2 == 0 else known.secret


def _rotation(known: GatewayCredentials) -> str:
    return http_url(known.url, "/manage/rotate")


def _bearer(known: GatewayCredentials, now: float) -> str:
    return tokens.make(known.gateway_id, known.secret, now)


def _write(draft: int, known: GatewayCredentials) -> None:
    named = {name: value for name, value in asdict(known).items() if value or "pending" not in name}
    os.write(draft, canonical.encode(named) + b"\n")


async def _post(url: str, body: dict[str, Any], bearer: str | None = None) -> dict[str, Any]:
    return await _ask("POST", url, body, bearer)


async def _ask(
    method: str, url: str, body: dict[str, Any] | None, bearer: str | None
) -> dict[str, Any]:
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    try:
        # No redirects: the token is for the connector that was named.
        async with (
            outgoing.bounded_client(None, timeout=_SECONDS, follow_redirects=False) as client,
            client.stream(method, url, json=body, headers=headers) as response,
        ):
            raw = await outgoing.read_bounded(response, _MOST_BYTES)
    except ResponseError:
        raise _unexpected(url) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RelayError(
            Code.UNAVAILABLE,
            f"the connector does not answer ({str(error) or type(error).__name__})",
            where=url,
            mend="check the address, and whether it runs",
        ) from error
    try:
        answer = canonical.decode(raw)
    except canonical.CanonicalError:
        raise _unexpected(url) from None
    if not isinstance(answer, dict):
        raise _unexpected(url)
    if not response.is_success:
        # Older connectors put the code into `error`, and the sentence into `message`.
        code = _CODES.get(str(answer.get("code") or answer.get("error")), Code.UNAVAILABLE)
        if response.status_code == Code.UNAUTHORIZED.status:
            code = Code.UNAUTHORIZED  # whether the secret is wrong, expired or revoked
        why = answer.get("message") or answer.get("error") or "the connector refuses"
        raise RelayError(code, str(why)[:500])
    return answer


def _unexpected(url: str) -> RelayError:
    return RelayError(
        Code.UNAVAILABLE,
        "the server at this address is not a connector",
        where=url,
        mend="check the address",
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
