"""A Matrix homeserver, from the wheel matrix-synapse: on SQLite, alone, and without limits.

It federates with nobody, sends nothing anywhere and limits no rate. Its users come by the shared
secret of its registration (`register`), which is how an operator makes accounts.
"""

import base64
import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from accord.testing.errors import HarnessError
from accord.testing.servers.process import HOST, Program, Server, replies, running
from accord.testing.servers.wheels import program

SERVER_NAME: Final = "synapse.test"
"""What its users' ids end with; it is nobody's address."""

_ENDLESS: Final = {"per_second": 1_000_000, "burst_count": 1_000_000}
_REGISTER: Final = "/_synapse/admin/v1/register"
_ASKED: Final = b"GET /health HTTP/1.0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class MatrixUser:
    """An account on the homeserver."""

    id: str
    token: str = field(repr=False)


@contextmanager
def synapse_server(*, appservices: Sequence[Path] = ()) -> Iterator[Server]:
    """Run a homeserver.

    Args:
        appservices: The registrations of application services.
    """
    program("matrix-synapse", "synapse/app/homeserver.py")  # says what is missing, if it is

    def make(folder: Path, port: int) -> Program:
        settings = folder / "homeserver.yaml"
        # What is JSON is YAML.
        settings.write_text(json.dumps(_settings(folder, port, appservices)))
        key = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        (folder / "signing.key").write_text(f"ed25519 a_test {key}\n")
        command = [sys.executable, "-m", "synapse.app.homeserver", "-c", str(settings)]
        return Program(command, answers=lambda: replies(port, _ASKED, b"HTTP/1.0 200"))

    with running("synapse", make, lambda port: f"http://{HOST}:{port}") as server:
        yield server


def register(server: Server, name: str) -> MatrixUser:
    """Make an account, whose name nobody has yet.

    Raises:
        HarnessError: The homeserver would not.
    """
    secret = (server.folder / "registration_secret").read_text()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        nonce = client.get(_REGISTER).json()["nonce"]
        password = secrets.token_hex(8)
        told = "\0".join([nonce, name, password, "notadmin"])
        mac = hmac.new(secret.encode(), told.encode(), hashlib.sha1).hexdigest()
        given = {"nonce": nonce, "username": name, "password": password, "mac": mac}
        answer = client.post(_REGISTER, json=given)
    if answer.status_code != httpx.codes.OK:
        raise HarnessError(f"the homeserver made no account: {answer.text[:200]}")
    made = answer.json()
    return MatrixUser(made["user_id"], made["access_token"])


def _settings(folder: Path, port: int, appservices: Sequence[Path]) -> dict[str, Any]:
    secret = secrets.token_hex(16)
    (folder / "registration_secret").write_text(secret)
    return {
        "server_name": SERVER_NAME,
        "public_baseurl": f"http://{HOST}:{port}/",
        "pid_file": str(folder / "synapse.pid"),
        "listeners": [
            {
                "port": port,
                "type": "http",
                "bind_addresses": [HOST],
                "resources": [{"names": ["client"]}],
            }
        ],
        "database": {"name": "sqlite3", "args": {"database": str(folder / "synapse.db")}},
        "media_store_path": str(folder / "media"),
        "signing_key_path": str(folder / "signing.key"),
        "registration_shared_secret": secret,
        "bcrypt_rounds": 4,
        "macaroon_secret_key": secrets.token_hex(16),
        "form_secret": secrets.token_hex(16),
        "app_service_config_files": [str(path) for path in appservices],
        "federation_domain_whitelist": [],
        "trusted_key_servers": [],
        "suppress_key_server_warning": True,
        "report_stats": False,
        "presence": {"enabled": False},
        "enable_media_repo": False,
        "rc_message": _ENDLESS,
        "rc_registration": _ENDLESS,
        "rc_login": {"address": _ENDLESS, "account": _ENDLESS, "failed_attempts": _ENDLESS},
        "rc_joins": {"local": _ENDLESS, "remote": _ENDLESS},
        "rc_invites": {"per_room": _ENDLESS, "per_user": _ENDLESS, "per_issuer": _ENDLESS},
        "rc_admin_redaction": _ENDLESS,
        "rc_room_creation": _ENDLESS,
    }
