"""A node's keys and certificate on disk, and trust in exactly one certificate."""

import asyncio
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from accord.community import identity
from accord.community.errors import Code, CommunityError
from accord.kernel.signing import SigningError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_root_key_has_a_folder_of_its_own(tmp_path: Path) -> None:
    key = identity.create_root(tmp_path)
    folder = identity.community_folder(tmp_path, key.id)
    assert [mode(folder), mode(folder / "root.ed25519")] == [0o700, 0o600]
    assert [each.name for each in (tmp_path / "communities").iterdir()] == [folder.name]
    loaded = identity.load_root(tmp_path, key.id)
    assert loaded is not None
    assert loaded.id == key.id


def test_a_community_that_was_joined_has_no_root_key(tmp_path: Path) -> None:
    key = identity.create_root(tmp_path / "elsewhere")
    assert identity.load_root(tmp_path, key.id) is None


def test_a_root_key_in_the_wrong_folder_is_refused(tmp_path: Path) -> None:
    one, two = identity.create_root(tmp_path), identity.create_root(tmp_path)
    folder = identity.community_folder(tmp_path, one.id)
    identity.community_folder(tmp_path, two.id).joinpath("root.ed25519").replace(
        folder / "root.ed25519"
    )
    with pytest.raises(CommunityError, match="another community"):
        identity.load_root(tmp_path, one.id)


def test_a_root_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key = identity.create_root(tmp_path)
    (identity.community_folder(tmp_path, key.id) / "root.ed25519").chmod(0o644)
    with pytest.raises(SigningError):
        identity.load_root(tmp_path, key.id)


def test_a_root_key_that_cannot_be_kept_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "communities").write_text("a file where a folder should be")
    with pytest.raises(CommunityError) as caught:
        identity.create_root(tmp_path)
    assert caught.value.code is Code.INTERNAL_ERROR


def test_a_certificate_is_made_once(tmp_path: Path) -> None:
    path = identity.ensure_certificate(tmp_path)
    made = path.read_bytes()
    assert identity.ensure_certificate(tmp_path).read_bytes() == made
    assert mode(path) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert identity.fingerprint(identity.read_certificate(path)).startswith("sha256:")


def test_a_damaged_certificate_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = identity.ensure_certificate(tmp_path)
    path.write_bytes(b"damaged")
    for use in (identity.server_context, identity.read_certificate):
        with pytest.raises(CommunityError, match="restore the file"):
            use(path)
    with pytest.raises(CommunityError):
        identity.ensure_certificate(tmp_path / "missing")


class Listener:
    """Echoes one line and remembers every byte that it heard."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.heard = b""


def served(keys: Path) -> ssl.SSLContext:
    keys.mkdir()
    return identity.server_context(identity.ensure_certificate(keys))


@asynccontextmanager
async def listening(keys: Path) -> AsyncIterator[Listener]:
    listener = Listener(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        listener.heard += line
        writer.write(line)
        writer.close()

    context = served(keys)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        listener.port = server.sockets[0].getsockname()[1]
        yield listener


async def say(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"a secret\n")
        return await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_the_pinned_certificate_is_spoken_with(tmp_path: Path) -> None:
    async with listening(tmp_path / "one") as listener:
        shown = await identity.probe_certificate("127.0.0.1", listener.port)
        assert shown == identity.read_certificate(tmp_path / "one" / "tls.pem")
        assert await say(listener.port, identity.pinned_context(shown)) == b"a secret\n"


async def test_another_certificate_hears_no_byte_of_the_request(tmp_path: Path) -> None:
    async with listening(tmp_path / "one") as one, listening(tmp_path / "two") as two:
        pinned = identity.pinned_context(await identity.probe_certificate("127.0.0.1", one.port))
        with pytest.raises(ssl.SSLCertVerificationError):
            await say(two.port, pinned)
    assert (one.heard, two.heard) == (b"", b"")


async def test_where_nobody_speaks_tls_there_is_no_certificate() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(CommunityError) as caught:
            await identity.probe_certificate("127.0.0.1", port)
    assert caught.value.code is Code.PARTITION
    with pytest.raises(CommunityError):
        await identity.probe_certificate("127.0.0.1", port)


def test_what_is_not_a_certificate_is_not_pinned() -> None:
    for junk in (b"", b"junk", b"\x30\x03\x02\x01\x01"):
        with pytest.raises(CommunityError):
            identity.pinned_context(junk)


def test_an_invite_as_a_qr_code() -> None:
    link = "hearthnet://v1/" + "A" * 660
    drawn = identity.qr_text(link)
    assert 40 < len(drawn.splitlines()) < 60
    svg = ET.fromstring(identity.qr_svg(link))
    assert svg.tag.endswith("svg")
