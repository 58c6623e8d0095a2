"""The guide's own code works."""

import re
import sys
import types
from pathlib import Path

import pytest

from accord.relay.gateway import GatewaySettings

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "agents.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture
def my_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_agent")
    exec(BLOCKS[0], vars(module))
    monkeypatch.setitem(sys.modules, "my_agent", module)


async def test_the_agent_of_the_guide_passes_the_test_of_the_guide(my_agent: None) -> None:
    (test,) = [block for block in BLOCKS if "test_it_answers" in block]
    names: dict[str, object] = {}
    exec(test, names)
    await names["test_it_answers"]()  # type: ignore[operator]


def test_the_settings_of_the_guide_can_be_made() -> None:
    shown = [block for block in BLOCKS if "settings = GatewaySettings" in block]
    for block in shown:
        names: dict[str, object] = {}
        exec(block, names)
        assert isinstance(names["settings"], GatewaySettings)
    assert len(shown) == 2
