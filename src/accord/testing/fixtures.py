"""The pytest plugin: real servers as fixtures, and `--long`.

pytest loads this file wherever Accord is installed, so what needs `accord[dev]` is imported only
when a test uses it. The servers are shared for the whole session: a test that kills or reconfigures
one starts its own with `accord.testing.servers`.
"""

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from accord.testing.clock import VirtualClock

if TYPE_CHECKING:
    from accord.testing.browser import Chromium
    from accord.testing.servers import Server


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`."""
    parser.getgroup("accord").addoption(
        "--long", action="store_true", help="also run the tests that are marked long"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "long: a longer variant of another test; run with --long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect long tests unless `--long` is given; a skip would say that something is missing."""
    if config.getoption("--long"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that stands still until it is advanced."""
    return VirtualClock()


@pytest.fixture(scope="session")
def nats() -> "Iterator[Server]":
    """A NATS server with JetStream."""
    from accord.testing.servers import nats_server

    with nats_server(jetstream=True) as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> "Iterator[Server]":
    """A Redis server."""
    from accord.testing.servers import redis_server

    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Server]":
    """A PostgreSQL server; most tests want `postgres_url` instead."""
    from accord.testing.servers import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def synapse() -> "Iterator[Server]":
    """A Matrix homeserver."""
    from accord.testing.servers import synapse_server

    with synapse_server() as server:
        yield server


@pytest.fixture(scope="session")
def chromium(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "Chromium":
    """A browser; a test that asks for it skips where there is none."""
    from filelock import FileLock

    from accord.testing import HarnessError
    from accord.testing.browser import find_chromium

    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    folder = cache.mkdir("accord-browser") if cache else tmp_path_factory.mktemp("browser")
    try:
        with FileLock(folder.with_suffix(".lock")):
            return find_chromium(folder)
    except HarnessError as error:
        pytest.skip(f"no browser: {error}")


@pytest.fixture
def postgres_url(postgres: "Server") -> Iterator[str]:
    """The address of a fresh database, dropped after the test."""
    import psycopg

    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        try:
            yield f"{postgres.url.rpartition('/')[0]}/{name}"
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
