"""Two nodes on one network find each other, and nobody else is believed."""

import asyncio
import gc
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.errors import CommunityError
from accord.community.peers import Announcement, Endpoint, Hint, LocalNetwork, read_hints
from accord.kernel.signing import SigningKey

ONE, TWO = SigningKey.from_seed(b"1" * 32), SigningKey.from_seed(b"2" * 32)
COMMUNITY = SigningKey.from_seed(b"c" * 32).id


def announcement(key: SigningKey, port: int) -> Announcement:
    return Announcement(key.id, (COMMUNITY,), ("127.0.0.1",), port, "http")


def need_multicast() -> None:
    """Skip where the loopback interface passes no multicast on."""
    group = ("224.0.0.251", 5353)
    member = socket.inet_aton(group[0]) + socket.inet_aton("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        try:
            heard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            heard.bind(("", 0))
            heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            heard.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, member[4:])
            heard.settimeout(2)
            heard.sendto(b"hello", (group[0], heard.getsockname()[1]))
            heard.recv(16)
        except OSError:
            pytest.skip("this machine has no multicast on its loopback interface")


async def test_two_nodes_find_each_other() -> None:
    need_multicast()
    found: asyncio.Queue[tuple[str, Hint]] = asyncio.Queue()
    networks = {
        name: LocalNetwork(
            lambda hint, name=name: found.put_nowait((name, hint)),  # type: ignore[misc]
            interfaces=["127.0.0.1"],
        )
        for name in ("one", "two")
    }
    try:
        await networks["one"].start(announcement(ONE, 7081))
        await networks["two"].start(announcement(TWO, 7082))
        wanted = {
            ("one", Hint(TWO.id, Endpoint("http", "127.0.0.1", 7082))),
            ("two", Hint(ONE.id, Endpoint("http", "127.0.0.1", 7081))),
        }
        async with asyncio.timeout(30):
            while wanted:
                wanted.discard(await found.get())
    finally:
        for network in networks.values():
            await network.close()


async def test_closing_what_never_started_is_no_harm() -> None:
    network = LocalNetwork(print)
    await network.close()
    await network.close()


# zeroconf leaves the socket of a start that fails to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_machine_without_that_interface_says_so() -> None:
    network = LocalNetwork(print, interfaces=["203.0.113.1"])
    with pytest.raises(CommunityError, match="multicast DNS"):
        await network.start(announcement(ONE, 7081))
    gc.collect()


def test_what_is_announced_is_read() -> None:
    told = announcement(ONE, 7081)
    properties = {name.encode(): value.encode() for name, value in told.properties().items()}
    assert read_hints(properties, ["127.0.0.1"], 7081) == [
        Hint(ONE.id, Endpoint("http", "127.0.0.1", 7081))
    ]
    assert len(read_hints(properties, ["127.0.0.1"] * 100, 7081)) == 8
    assert all(len(f"{name}={value}") <= 255 for name, value in told.properties().items())


@given(
    st.dictionaries(
        st.sampled_from([b"node_id", b"transport", b"port"]), st.none() | st.binary(max_size=60)
    ),
    st.none() | st.integers(0, 65535),
)
def test_other_announcements_are_nothing(
    properties: dict[bytes, bytes | None], port: int | None
) -> None:
    assert read_hints(properties, ["127.0.0.1"], port) == []
