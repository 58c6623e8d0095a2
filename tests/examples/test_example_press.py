"""The press: an operation that is watched, cancelled, and taken up again."""

import json
import re

import pytest
from examples import press
from tests.examples.example_network import Network, complaints, let_in

from accord.testing.processes import Child

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def printing(bare: Network) -> Network:
    """A press under the authority."""
    bare.contracts["press"] = bare.home.parent / "press.json"
    bare.contracts["press"].write_bytes(press.contract().to_json())
    let_in(bare, "press")
    bare.serving["press"] = bare.serve("press")
    return bare


def ordered(town: Network, copies: int) -> tuple[Child, str]:
    """An order that is watched, and its id."""
    about = town.about("press", "Press.Print")
    child = town.start("rpc", "run", *about, json.dumps({"title": "News", "copies": copies}))
    told = re.search(r"started (\S+)", complaints(child, "progress "))
    assert told is not None
    return child, told[1]


def test_copies_are_printed_with_progress(printing: Network) -> None:
    child, _ = ordered(printing, 3)
    assert json.loads(child.read_line()) == {"copies": 3}
    assert child.wait() == 0


def test_an_order_is_cancelled_by_one_word_and_cancelling_it_again_changes_nothing(
    printing: Network,
) -> None:
    child, order = ordered(printing, 1000)
    about = (*printing.about("press", "Press.Print"), order)
    for _ in range(2):
        assert printing.ask("rpc", "cancel", *about) == {"id": order, "state": "cancelled"}
    assert json.loads(child.read_line())["error"]["message"] == "the operation was cancelled"
    assert child.wait() == 1


@pytest.mark.long
def test_an_order_goes_on_where_it_was_when_the_press_was_killed(printing: Network) -> None:
    child, _ = ordered(printing, 12)
    complaints(child, 'progress {"copies":3}')
    printing.serving["press"].kill()
    printing.serving["press"] = printing.serve("press")
    assert json.loads(child.read_line(within=60)) == {"copies": 12}
    told = [int(each) for each in re.findall(r'"copies":(\d+)', complaints(child, '"copies":12'))]
    assert told == sorted(told)
