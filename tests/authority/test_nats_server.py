"""A server of our own: started, kept, ended; and one that somebody else runs."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from nats.errors import Error as NatsError
from tests.authority.nats_cases import SHOP, MemoryAuthority, dialled, until

from accord.authority.nats import (
    Callout,
    Cluster,
    Connections,
    IssuedPermissions,
    ListenAddress,
    SystemKeys,
    connect,
    embedded_server,
    read_cluster,
)
from accord.authority.rules import AuthorityError, Code
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey

CLOCK = SystemClock()


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_what_is_secret_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "nats"
    async with embedded_server(folder, ListenAddress(), CLOCK):
        pass
    assert _mode(folder) == 0o700
    assert _mode(folder / "server.conf") == 0o600
    assert {_mode(file) for file in (folder / "keys").iterdir()} == {0o600}
    assert len(list((folder / "keys").iterdir())) == 7


async def test_keys_are_made_once(tmp_path: Path) -> None:
    first, second = (
        SystemKeys.load_or_create(tmp_path / "keys"),
        SystemKeys.load_or_create(tmp_path / "keys"),
    )
    assert first.account.seed == second.account.seed
    assert first.xkey.seed == second.xkey.seed
    assert first.account.seed not in repr(first)
    assert first.xkey.seed not in repr(first)


async def test_an_account_that_was_for_everything_keeps_its_streams(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    old = SystemKeys.load_or_create(keys)
    (keys / "streams.nk").unlink()
    new = SystemKeys.load_or_create(keys)
    assert new.streams.public == old.account.public
    assert new.account.public not in (old.account.public, old.streams.public)
    assert SystemKeys.load_or_create(keys).account.public == new.account.public


async def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    SystemKeys.load_or_create(tmp_path / "keys")
    (tmp_path / "keys" / "account.nk").chmod(0o644)
    with pytest.raises(AuthorityError, match="may be read by others"):
        SystemKeys.load_or_create(tmp_path / "keys")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
async def test_without_tls_it_listens_on_loopback_only(tmp_path: Path, host: str) -> None:
    with pytest.raises(AuthorityError, match="without TLS") as refused:
        async with embedded_server(tmp_path / "nats", ListenAddress(host=host), CLOCK):
            pass
    assert refused.value.code is Code.FORBIDDEN
    assert not (tmp_path / "nats").exists()


async def test_with_a_certificate_it_speaks_tls_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = _certificate(tmp_path / "server.pem")
    listening = ListenAddress(host="0.0.0.0", certificate=certificate, advertise="nats.example.org")
    async with embedded_server(tmp_path / "nats", listening, CLOCK) as server:
        cluster = server.cluster
        address, _, port = cluster.urls[0].rpartition(":")
        assert address == "tls://nats.example.org"
        own = await connect("look", cluster, cluster.authority)
        assert own.is_connected
        await own.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        greeting = await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert b'"tls_required":true' in greeting
        # Who does not trust the certificate says so, and does not try for ever.
        monkeypatch.setattr("accord.authority.nats.accounts._CONNECT_SECONDS", 1.0)
        strangers = dataclasses.replace(cluster, tls=None)
        with pytest.raises(AuthorityError, match="CERTIFICATE") as refused:
            await connect("look", strangers, cluster.authority)
        assert refused.value.code is Code.UNAVAILABLE


async def test_a_folder_has_one_server(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "nats", ListenAddress(), CLOCK):
        with pytest.raises(AuthorityError, match="another process") as refused:
            async with embedded_server(tmp_path / "nats", ListenAddress(), CLOCK):
                pass
    assert refused.value.code is Code.CONFLICT


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "one", ListenAddress(), CLOCK) as first:
        taken = int(first.cluster.urls[0].rpartition(":")[2])
        assert first.pid is not None
        with pytest.raises(AuthorityError) as refused:
            async with embedded_server(tmp_path / "two", ListenAddress(port=taken), CLOCK):
                pass
    assert refused.value.code is Code.UNAVAILABLE
    assert "port" in str(refused.value)


async def test_a_killed_server_comes_back_with_everything_it_acknowledged(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "nats", ListenAddress(), CLOCK) as server:
        own = await connect("publish", server.cluster, server.cluster.authority)
        stream = own.jetstream()
        await stream.add_stream(name="KEPT", subjects=["events.>"])
        killed, acknowledged = server.pid, 0
        assert killed is not None

        async def publish() -> None:
            nonlocal acknowledged
            while acknowledged < 200:
                with contextlib.suppress(NatsError):  # it may have been lost with the server
                    await stream.publish("events.one", b"message", timeout=1)
                    acknowledged += 1

        publishing = asyncio.create_task(publish())
        await until(lambda: acknowledged > 50)
        os.kill(killed, signal.SIGKILL)
        await asyncio.wait_for(publishing, 30)
        assert server.restarts == 1
        assert server.pid not in (None, killed)
        kept = (await stream.stream_info("KEPT")).state.messages
        await own.close()
    assert kept >= acknowledged


async def test_it_ends_with_its_block(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "nats", ListenAddress(), CLOCK) as server:
        pid = server.pid
        assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_KILLED = """
import asyncio, sys
from pathlib import Path
from accord.authority.nats import ListenAddress, embedded_server
from accord.kernel.clock import SystemClock

async def main():
    async with embedded_server(Path(sys.argv[1]), ListenAddress(), SystemClock()) as server:
        print(server.pid, server.cluster.urls[0].rpartition(":")[2], flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_what_a_killed_authority_left_running_is_ended_first(tmp_path: Path) -> None:
    folder = tmp_path / "nats"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _KILLED, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    orphan, port = map(int, line.split())
    process.kill()
    await process.wait()
    os.kill(orphan, 0)  # it lives on
    async with embedded_server(folder, ListenAddress(port=port), CLOCK) as server:
        assert server.pid != orphan
        own = await connect("look", server.cluster, server.cluster.authority)
        await own.close()
    assert not _runs(orphan, folder)


def _runs(pid: int, folder: Path) -> bool:
    try:
        return os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def test_a_system_that_somebody_else_runs_is_governed_alike(tmp_path: Path) -> None:
    """Its keys lie in a folder, as its operator put them there."""
    async with embedded_server(tmp_path / "nats", ListenAddress(), CLOCK) as server:
        folder = _handed_over(server.cluster, tmp_path / "nats" / "keys", tmp_path / "theirs")
        cluster = read_cluster(server.cluster.urls, folder)
        authority, issued, key = MemoryAuthority(), IssuedPermissions(), SigningKey.generate()
        authority.admit(key, SHOP)
        callout = Callout(authority.as_authority(), cluster, CLOCK, issued)
        connections = Connections(authority.as_authority(), cluster, CLOCK, issued)
        async with (
            callout.listening(),
            connections.watching(),
            dialled(cluster, key, SHOP) as shop,
        ):
            assert await shop.may_publish("rpc.v1.Stock.Count")
            assert not await shop.may_publish("rpc.v1.Stock.Secret")
            await until(lambda: len(connections.all()) == 1)


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [
        ("account.nk", None, "cannot be read"),
        ("account.nk", "SUnonsense", "not the seed"),
        ("callout.creds", "nonsense", "not a credentials file"),
        ("sentinel.creds", None, "cannot be read"),
        ("xkey.nk", "nonsense", "not the seed"),
        ("ca.pem", "nonsense", "certificate"),
    ],
)
async def test_a_folder_that_lacks_something_is_refused(
    tmp_path: Path, file: str, text: str | None, what: str
) -> None:
    async with embedded_server(tmp_path / "nats", ListenAddress(), CLOCK) as server:
        folder = _handed_over(server.cluster, tmp_path / "nats" / "keys", tmp_path / "theirs")
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text)
        (folder / file).chmod(0o600)
    with pytest.raises(AuthorityError, match=what):
        read_cluster(server.cluster.urls, folder)


async def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "nats", ListenAddress(), CLOCK) as server:
        cluster = server.cluster
    with pytest.raises(AuthorityError) as refused:
        await connect("look", cluster, cluster.authority, max_reconnect_attempts=1)
    assert refused.value.code is Code.UNAVAILABLE
    assert cluster.authority.seed not in str(refused.value)


def _handed_over(cluster: Cluster, keys: Path, folder: Path) -> Path:
    folder.mkdir()
    for name in ("account.nk", "callout.nk", "xkey.nk"):
        shutil.copy(keys / name, folder / name)
    assert cluster.system is not None
    for name, credentials in (
        ("callout.creds", cluster.callout),
        ("authority.creds", cluster.authority),
        ("sentinel.creds", cluster.sentinel),
        ("system.creds", cluster.system),
    ):
        (folder / name).write_text(credentials.text)
        (folder / name).chmod(0o600)
    return folder


def _certificate(file: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nats.example.org")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("nats.example.org")]), False)
        .sign(key, hashes.SHA256())
    )
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    file.chmod(0o600)
    return file
