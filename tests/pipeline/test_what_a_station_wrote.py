"""A running station, its journals landed, and the tables that come of them, end to end."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.test_relay_station import Operator, Person, station
from tests.pipeline.folders import bring_up, stored
from typer.testing import CliRunner

from accord.cli import app
from accord.pipeline.folder import Layout
from accord.pipeline.rules import BUS_CALLS, COMMUNITY_EVENTS, RELAY_DECISIONS
from accord.pipeline.runs import open_published, published_tables
from accord.pipeline.tables import gold_community, gold_relay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ask(home: Path, *words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--home", str(home), "--json"])
    assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
    return json.loads(result.stdout)


def test_the_tables_say_what_a_running_station_did(tmp_path: Path, spark: "SparkSession") -> None:
    home = tmp_path / "home"
    home.mkdir()
    # Ann is linked to nobody, and would only be counted.
    (home / "accord.toml").write_text("[relay]\nunlinked_sample = 1.0\n")
    with station(home, "up") as (_, address):
        ask(home, "community", "create", "Our street")
        for title in ("Water cans", "A ladder"):
            ask(home, "market", "post", title, "--category", "offer")
        operator = Operator(home)
        operator.run("chat", "space", "home")
        invite = operator.ask("chat", "invite")["url"]
        person = Person(address, invite, "ann")
        person.say(person.direct, "the words of ann")
        person.http.close()
        before = time.monotonic()
        while not ask(home, "pipeline", "export", "--once")["records"].get(RELAY_DECISIONS):
            assert time.monotonic() < before + 30, "the decision never landed"
        shown = ask(home, "community", "show")

    layout = Layout(home / "pipeline")
    tables = (*gold_community.COMMUNITY_TABLES, *gold_relay.RELAY_TABLES)
    outcome = bring_up(layout, spark, tables)
    assert {each.stream for each in outcome.accounts} >= {
        COMMUNITY_EVENTS,
        BUS_CALLS,
        RELAY_DECISIONS,
    }
    assert all(each.balances and not each.quarantined for each in outcome.accounts)
    with open_published(layout) as version:

        def rows(name: str) -> list[Any]:
            return published_tables(layout, spark, version).gold(name).collect()

        [state] = rows("state")
        assert state["digest"] == shown["state_digest"]
        assert {row["title"] for row in rows("market")} == {"Water cans", "A ladder"}
        [drop] = rows("relay_drops")
        assert drop["rule"] == "tenant.no-dm-default"
    landed = stored(layout, spark).layer("bronze").select("body").collect()
    assert not any("the words of ann" in row["body"] for row in landed)
