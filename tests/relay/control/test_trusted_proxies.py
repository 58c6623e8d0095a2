"""Whose request it is behind proxies: only those that are trusted are believed."""

import ipaddress
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware

from accord.relay.connector import ControlRoutes
from accord.web.incoming import TrustedProxies, client_of

INSIDE = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.7, 10.0.0.2"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.7:443, [fd00::2]:80"], "198.51.100.7"),
        ("10.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("::ffff:10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["6.6.6.6, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("198.51.100.7", ["6.6.6.6"], "198.51.100.7"),
        ("a socket's path", ["6.6.6.6"], "a socket's path"),
    ],
)
def test_the_last_address_that_is_no_proxys_is_believed(
    peer: str, said: list[str], client: str
) -> None:
    assert client_of(peer, said, INSIDE) == client


@given(st.lists(st.text(max_size=40), max_size=5))
def test_a_stranger_is_a_stranger_whatever_is_said(said: list[str]) -> None:
    assert client_of("198.51.100.7", said, INSIDE) == "198.51.100.7"
    client_of("10.0.0.1", said, INSIDE)


async def asked(half: Any, proxies: Any, peer: str, said: str, times: int) -> set[int]:
    """The answers to wrong enrolment tokens, from addresses that the header names."""
    app = Starlette(
        routes=ControlRoutes(half.control, half.clock).routes,
        middleware=[Middleware(TrustedProxies, networks=proxies)],
    )
    transport = httpx.ASGITransport(app, client=(peer, 4000))
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as client:
        body = {"enrollmentToken": "x", "gatewayId": "g"}
        return {
            (
                await client.post(
                    "/relay/enroll", json=body, headers={"x-forwarded-for": said.format(number)}
                )
            ).status_code
            for number in range(times)
        }


async def test_behind_a_trusted_proxy_each_client_has_a_limit_of_its_own(half: Any) -> None:
    assert 429 not in await asked(half, INSIDE, "10.0.0.1", "198.51.100.{}", 60)
    assert 429 in await asked(half, INSIDE, "10.0.0.1", "{}.6.6.6, 198.51.100.7", 60)


async def test_nobody_escapes_a_limit_by_naming_another_address(half: Any) -> None:
    assert 429 in await asked(half, INSIDE, "198.51.100.7", "6.6.6.{}", 60)
    assert 429 in await asked(half, (), "10.0.0.1", "6.6.6.{}", 60)
