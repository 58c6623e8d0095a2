"""The guarded client, against real sockets on this machine."""

import asyncio
import datetime as dt
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from accord.web.outgoing import (
    Address,
    GuardedTransport,
    OutgoingError,
    OutgoingPolicy,
    guarded_client,
    resolve,
)

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers every request with the same bytes, and remembers what it was asked."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.heads: list[str] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self.answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    answer: bytes = OK, context: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    server = Server(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server


def names(**known: str | list[str]) -> Callable[[str, int], Awaitable[Sequence[Address]]]:
    """A resolver that knows just these names, and counts how often it is asked."""

    async def resolve(host: str, _port: int) -> Sequence[Address]:
        resolve.asked += 1  # type: ignore[attr-defined]
        found = known.get(host.replace(".", "_"))
        if found is None:
            raise OSError(-2, "no such name")
        return [ip_address(each) for each in ([found] if isinstance(found, str) else found)]

    resolve.asked = 0  # type: ignore[attr-defined]
    return resolve


def allowing(port: int) -> OutgoingPolicy:
    return OutgoingPolicy(http=True, ports=frozenset({port}), networks=(ip_network("127.0.0.0/8"),))


async def test_a_name_is_resolved_once_and_keeps_its_host_header() -> None:
    resolver = names(wake_example="127.0.0.1")
    async with (
        serving() as server,
        guarded_client(allowing(server.port), resolver=resolver) as client,
    ):
        response = await client.get(f"http://wake.example:{server.port}/up?x=1")
    assert response.status_code == 200
    assert server.heads[0].startswith("GET /up?x=1 HTTP/1.1\r\n")
    assert f"host: wake.example:{server.port}\r\n" in server.heads[0].lower()
    assert resolver.asked == 1  # type: ignore[attr-defined]


async def test_an_inner_address_is_refused_before_any_connection() -> None:
    async with serving() as server:
        policy = OutgoingPolicy(http=True, ports=frozenset({server.port}))
        async with guarded_client(policy, resolver=names(inside_example="127.0.0.1")) as client:
            with pytest.raises(OutgoingError) as refused:
                await client.get(f"http://inside.example:{server.port}/")
            with pytest.raises(OutgoingError):
                await client.get(f"http://127.0.0.1:{server.port}/")
    assert refused.value.where == "outgoing.loopback"
    assert server.connections == 0


async def test_the_system_resolver_is_judged_too() -> None:
    async with serving() as server:
        policy = OutgoingPolicy(http=True, ports=frozenset({server.port}))
        async with guarded_client(policy) as client:
            for host in ("localhost", "0x7f000001", "127.1", "2130706433"):
                with pytest.raises((OutgoingError, httpx.ConnectError)):
                    await client.get(f"http://{host}:{server.port}/")
    assert server.connections == 0


async def test_one_inner_address_among_public_ones_refuses_the_name() -> None:
    resolver = names(mixed_example=["93.184.216.34", "10.0.0.1"])
    async with guarded_client(OutgoingPolicy(), resolver=resolver) as client:
        with pytest.raises(OutgoingError) as refused:
            await client.get("https://mixed.example/")
    assert refused.value.where == "outgoing.private"


async def test_a_second_address_is_tried_when_the_first_does_not_connect() -> None:
    async with serving() as server:
        resolver = names(two_example=["127.0.0.2", "127.0.0.1"])
        async with guarded_client(allowing(server.port), resolver=resolver) as client:
            response = await client.get(f"http://two.example:{server.port}/")
    assert response.status_code == 200


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    answer = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/x\r\ncontent-length: 0\r\n\r\n"
    async with (
        serving(answer) as server,
        guarded_client(allowing(server.port), resolver=names(a_example="127.0.0.1")) as client,
    ):
        response = await client.get(f"http://a.example:{server.port}/")
    assert response.status_code == 302
    assert server.connections == 1


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, serving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        resolver = names(a_example="127.0.0.1")
        async with guarded_client(allowing(server.port), resolver=resolver) as client:
            await client.get(f"http://a.example:{server.port}/")
    assert (server.connections, proxy.connections) == (1, 0)


async def test_no_connection_is_shared_between_names_of_one_address() -> None:
    resolver = names(a_example="127.0.0.1", b_example="127.0.0.1")
    async with (
        serving(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as server,
        guarded_client(allowing(server.port), resolver=resolver) as client,
    ):
        for name in ("a.example", "b.example", "a.example"):
            await client.get(f"http://{name}:{server.port}/")
    assert server.connections == 3


async def test_an_unknown_name_is_a_failed_connection() -> None:
    async with guarded_client(OutgoingPolicy(), resolver=names()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("https://nowhere.example/")


async def test_a_name_without_addresses_is_a_failed_connection() -> None:
    async with guarded_client(OutgoingPolicy(), resolver=names(a_example=[])) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("https://a.example/")


@pytest.mark.parametrize(("name", "good"), [("wake.example", True), ("other.example", False)])
async def test_the_certificate_is_checked_against_the_name(
    tmp_path: Path, name: str, good: bool
) -> None:
    server_side, client_side = certificate_for("wake.example", tmp_path)
    async with serving(context=server_side) as server:
        transport = GuardedTransport(
            allowing(server.port),
            resolver=names(wake_example="127.0.0.1", other_example="127.0.0.1"),
            inner=httpx.AsyncHTTPTransport(verify=client_side, trust_env=False),
        )
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            request = client.get(f"https://{name}:{server.port}/")
            if good:
                assert (await request).status_code == 200
            else:
                with pytest.raises(httpx.ConnectError):
                    await request


def certificate_for(name: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "cert.pem").write_bytes(pem)
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    client_side = ssl.create_default_context(cadata=pem.decode())
    return server_side, client_side


async def test_an_address_waits_for_no_name_that_cannot_be_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = threading.Event()

    def hang(*_: object, **__: object) -> None:
        end.wait(30)
        raise OSError(0, "no answer")

    monkeypatch.setattr("socket.getaddrinfo", hang)
    slow = [asyncio.ensure_future(resolve(f"{n}.slow.example", 443)) for n in range(100)]
    try:
        async with asyncio.timeout(10):
            assert await resolve("192.0.2.1", 443) == [ip_address("192.0.2.1")]
            assert await resolve("2001:db8::1", 443) == [ip_address("2001:db8::1")]
    finally:
        end.set()
        await asyncio.gather(*slow, return_exceptions=True)
