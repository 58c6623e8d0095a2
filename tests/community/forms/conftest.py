"""Keys, a manifest and events that the tests of forms share."""

from collections.abc import Callable
from typing import Any

import pytest

from accord.community.rules import Event, event, manifests
from accord.kernel.signing import SigningKey

NOW = 1_780_000_000.0
COMMUNITY = SigningKey.from_seed(b"c" * 32)


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.from_seed(b"1" * 32)


@pytest.fixture
def other() -> SigningKey:
    return SigningKey.from_seed(b"2" * 32)


@pytest.fixture
def third() -> SigningKey:
    return SigningKey.from_seed(b"3" * 32)


@pytest.fixture
def manifest(key: SigningKey) -> dict[str, Any]:
    return manifests.sign_node(key, about(), now=NOW)


@pytest.fixture
def compose(key: SigningKey) -> Callable[..., Event]:
    """Write an event of the first key's."""

    def write(event_type: str, data: dict[str, Any], *, author: SigningKey = key) -> Event:
        return event.compose_event(
            author,
            event_type,
            data,
            event_id="01HXR0000000000000000000AB",
            lamport=7,
            wall_clock="2026-05-26T08:14:22Z",
            community_id=COMMUNITY.id,
            author_seq=1,
            prev=None,
        )

    return write


def about() -> dict[str, Any]:
    """What a small node says of itself."""
    return {
        "display_name": "garage-pc",
        "community_id": COMMUNITY.id,
        "profile": "anchor",
        "endpoints": [
            {
                "transport": "https",
                "host": "192.168.188.25",
                "port": 7080,
                "certificate": f"sha256:{'a' * 64}",
            }
        ],
        "capabilities": [],
        "extensions": ["seal", "to"],
    }
