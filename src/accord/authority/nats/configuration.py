"""What a NATS server of our own is told: where to listen, whom to trust, how to keep streams.

Pure: the text follows from its arguments. Every acknowledged message is
on the disk (`sync_interval: always`), because the server's usual interval loses acknowledged
messages when the power fails.
"""

import ipaddress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import orjson

from accord.authority.errors import AuthorityError, Code
from accord.authority.nats.trust import Trust

# A manifest of the largest allowed size must fit into one answer, with its envelope.
_MAX_PAYLOAD: Final = 2 * 1024 * 1024
# A server pings whoever has been there for two seconds, and clients take that for a welcome.
_ADMISSION_SECONDS: Final = 1.75
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked up, not bound


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a server listens.

    Attributes:
        host: The address.
        port: The port; 0 takes a free one.
        certificate: A PEM file with certificate and key; without it there is no TLS.
        advertise: The host that sessions are told, if they know it by another name.
    """

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    advertise: str | None = None

    def checked(self) -> Self:
        """The same, if it is safe.

        Raises:
            AuthorityError: It would be open to other machines without TLS.
        """
        if self.certificate is None and not _is_loopback(self.host):
            raise AuthorityError(
                Code.FORBIDDEN,
                f"without TLS the NATS server may not listen on {self.host}",
                mend="listen on 127.0.0.1, or give a certificate",
            )
        return self

    def on(self, port: int) -> Self:
        """The same on another port."""
        return replace(self, port=port)

    @property
    def url(self) -> str:
        """Where sessions reach it."""
        return self._url(self.advertise or self.local_host)

    @property
    def local_host(self) -> str:
        """The address at which this machine reaches it."""
        return _ANYWHERE.get(self.host, self.host)

    @property
    def local_url(self) -> str:
        """Where this machine reaches it."""
        return self._url(self.local_host)

    def _url(self, host: str) -> str:
        scheme = "tls" if self.certificate else "nats"
        return f"{scheme}://{_bracketed(host)}:{self.port}"


def server_name(trust: Trust) -> str:
    """How the server calls itself: no other one does so."""
    return f"accord-{trust.account.public}"


def configuration(folder: Path, listening: Listening, trust: Trust, now: float) -> str:
    """The text of the server's configuration file."""
    operator, accounts = trust.server_jwts(now)
    members: dict[str, object] = {
        "server_name": server_name(trust),
        "listen": f"{_bracketed(listening.host)}:{listening.port}",
        "pid_file": str(folder / "server.pid"),
        "log_file": str(folder / "server.log"),
        "logfile_size_limit": 10_000_000,
        "logfile_max_num": 3,
        "max_payload": _MAX_PAYLOAD,
        "authorization": {"timeout": _ADMISSION_SECONDS},
        # A peer that vanished is noticed within a minute.
        "ping_interval": "20s",
        "ping_max": 2,
        "operator": operator,
        "system_account": trust.system.public,
        "resolver": "MEMORY",
        "resolver_preload": accounts,
        "jetstream": {"store_dir": str(folder / "jetstream"), "sync_interval": "always"},
    }
    if listening.certificate is not None:
        file = str(listening.certificate)
        members["tls"] = {"cert_file": file, "key_file": file}
    # The server's own language takes JSON as well.
    return orjson.dumps(members, option=orjson.OPT_INDENT_2).decode()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
