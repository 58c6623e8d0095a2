"""Requests from our own pages, and those that another site caused."""

from urllib.parse import urlsplit

import pytest
from starlette.datastructures import Headers

from accord.web.origin import is_own_page

BASE = urlsplit("https://chat.example")
NONE = urlsplit("")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, True),
        ({"origin": "https://chat.example"}, True),
        ({"origin": "https://chat.example", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "https://chat.example", "sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://chat.example"}, False),
        ({"origin": "https://evil.example", "host": "evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "file://"}, False),
        ({"origin": "https://["}, False),
        ({"origin": ""}, False),
    ],
)
def test_a_page_of_the_public_address_is_ours(headers: dict[str, str], expected: bool) -> None:
    assert is_own_page(Headers(headers), BASE) is expected


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:7070", True),
        ("http://127.0.0.1:7071", False),
        ("https://chat.example", False),
    ],
)
def test_without_a_public_address_the_host_is_ours(origin: str, expected: bool) -> None:
    headers = Headers({"origin": origin, "host": "127.0.0.1:7070"})
    assert is_own_page(headers, NONE) is expected
    assert not is_own_page(Headers({"origin": origin}), NONE)


def test_the_host_can_stand_beside_the_public_address() -> None:
    headers = Headers({"origin": "http://127.0.0.1:7070", "host": "127.0.0.1:7070"})
    assert not is_own_page(headers, BASE)
    assert is_own_page(headers, BASE, also_by_host=True)
    assert not is_own_page(Headers({"origin": "https://evil.example"}), BASE, also_by_host=True)


def test_what_a_user_started_can_be_accepted() -> None:
    headers = Headers({"sec-fetch-site": "none"})
    assert is_own_page(headers, BASE, also_typed=True)
    assert not is_own_page(Headers({"sec-fetch-site": "same-site"}), BASE, also_typed=True)
