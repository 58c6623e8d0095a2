"""A community to copy, founded once."""

from pathlib import Path

import pytest
from tests.capabilities.homes import Home


@pytest.fixture(scope="session")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a node that has founded a community."""
    home = tmp_path_factory.mktemp("founded") / "home"
    Home(home)("community", "create", "Our street")
    return home
