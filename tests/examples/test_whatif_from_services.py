"""What real services exchanged is what `accord pipeline whatif contract` answers from."""

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples import library
from tests.examples.example_network import Network, environment, until
from tests.pipeline.folders import bring_up
from typer.testing import CliRunner

from accord.cli import app
from accord.contracts import digest
from accord.pipeline import session
from accord.pipeline.folder import Layout
from accord.pipeline.tables import gold_contracts
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The proposal lets nobody keep a book for longer than a month; who wanted to is planted here.
PLANTED = (90, 31, 365)
GOOD = (30, 1)
CALLS = len(PLANTED) + len(GOOD)


@pytest.fixture(scope="module")
def proposal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    proposed = library.contract().manifest()
    proposed["schemas"]["Lend"]["properties"]["days"]["maximum"] = 30
    file = tmp_path_factory.mktemp("proposal") / "library.json"
    file.write_text(json.dumps(proposed))
    return file


@pytest.fixture(scope="module")
def landed(town: Network) -> Network:
    """The town after some calls, of which everything has landed."""
    for days in (*PLANTED, *GOOD):
        asked = json.dumps({"book": "Walden", "reader": "eve", "days": days})
        code, said, _ = town.run(
            "rpc", "call", *town.about("library", "Library.Lend"), asked, "--json"
        )
        # All but the first come in vain, and what they asked for counts all the same.
        assert code == 0 or json.loads(said)["error"]["type"] == "BookOut"
    records: Counter[str] = Counter()

    def look() -> bool | None:
        records.update(town.ask("pipeline", "export")["records"])
        return records["contracts.calls"] >= 2 * CALLS or None

    until(look)
    assert records["contracts.history"] > 0
    return town


def planted_alone(told: dict[str, Any]) -> None:
    """The report names the planted payloads, and nothing else."""
    assert told["code"] == 1
    found = told["found"]
    assert found["contract_id"] == "library@v1"
    assert found["against"] == digest(library.contract().manifest())
    [failure] = found["failures"]
    assert (failure["surface"], failure["part"]) == ("Library.Lend", "input")
    assert (failure["service"], failure["caller"]) == ("library", "shell")
    assert (failure["rule"], failure["pointer"]) == ("schema.maximum", "/days")
    assert failure["calls"] == len(PLANTED)
    first, last = (each["payload"]["days"] for each in failure["samples"])
    assert (first, last) == (PLANTED[0], PLANTED[-1])
    about = (failure["surface"], failure["part"])
    [lend] = [each for each in found["surfaces"] if (each["surface"], each["part"]) == about]
    assert (lend["failed"], lend["unrecorded"]) == (len(PLANTED), 0)
    assert lend["kept"] >= len(GOOD)


def test_a_proposal_is_tried_on_what_the_examples_exchanged(
    landed: Network, proposal: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = landed.home / "pipeline"
    needed = ("contracts_history", "contracts_manifests")
    tables = [table for table in gold_contracts.CONTRACT_TABLES if table.name in needed]
    outcome = bring_up(Layout(folder), spark, tables)
    accounts = {each.stream: (each.balances, each.quarantined) for each in outcome.accounts}
    assert accounts == {"contracts.calls": (True, 0), "contracts.history": (True, 0)}
    monkeypatch.setattr(session, "open_session", lambda *_, **__: nullcontext(spark))
    words = ["pipeline", "whatif", "contract", str(proposal), "--folder", str(folder), "--json"]
    told = CliRunner().invoke(app, words)
    planted_alone({"code": told.exit_code, "found": json.loads(told.stdout)})


@pytest.mark.long
def test_the_commands_of_the_guide_come_to_the_same(landed: Network, proposal: Path) -> None:
    folder = str(landed.home / "guide")
    landed.ask("pipeline", "export", "--to", f"{folder}/landing")
    run = ("-m", "accord.cli", "pipeline", "run", "--folder", folder, "--json")
    with python_child(*run, env=environment()) as child:
        assert child.wait(within=280) == 0
    ask = ("-m", "accord.cli", "pipeline", "whatif", "contract", str(proposal), "--folder", folder)
    with python_child(*ask, "--json", env=environment()) as child:
        found = json.loads(child.read_line(within=280))
        planted_alone({"code": child.wait(), "found": found})
