"""Both examples at work, once for all tests that use them."""

from collections.abc import Iterator

import pytest
from tests.examples.example_network import Network, let_in, network


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """An authority that knows nobody but its operator's shell."""
    with network(tmp_path_factory.mktemp("examples")) as made:
        yield made


@pytest.fixture(scope="session")
def town(bare: Network) -> Network:
    """A library and a post office that run under it."""
    services = ("library", "postoffice")
    for service in services:
        let_in(bare, service)
        bare.serving[service] = bare.start("service", "run", f"examples.{service}:{service}")
    for service in services:
        bare.serving[service].read_line()
    return bare
