import json
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from accord.cli import app
from accord.telemetry.metrics import METRICS
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

EVERYTHING = {
    "ACCORD_COMMUNITY__FOUND": "Home",
    "ACCORD_AUTHORITY__ENABLED": "true",
    "ACCORD_CONCIERGE__ENABLED": "true",
}


@dataclass(frozen=True)
class Station:
    """A station on which every plane has run, and what it last showed."""

    home: Path
    figures: str

    def audit(self, *options: str) -> list[dict[str, str]]:
        """What the command tells of it, after it has ended."""
        command = ["audit", "--home", str(self.home), "--json", *options]
        told = CliRunner().invoke(app, command)
        assert told.exit_code == 0, told.output
        return [json.loads(line) for line in told.stdout.splitlines()]


def is_whole(answer: httpx.Response) -> bool:
    """Whether every plane of a station is ready, and the bridge waits for its plan alone."""
    [bridge] = [plane for plane in answer.json()["planes"] if plane["name"] == "bridge"]
    reasons = [way["reason"] for way in bridge["parts"]]
    return answer.status_code == 200 and any("authority accept" in each for each in reasons)


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Station:
    home = tmp_path_factory.mktemp("station") / "home"
    arguments = ["up", "--home", str(home), "--port", "0", "--json"]
    with python_child("-m", "accord.cli", *arguments, env=EVERYTHING) as child:
        told = json.loads(child.read_line())
        with httpx.Client(base_url=told["address"], timeout=30) as client:
            deadline = time.monotonic() + 60
            # Planes are ready before the bridge has proposed what it would carry.
            while not is_whole(client.get("/readyz")):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            secret = told["console"].partition("link=")[2]
            entered = client.post(
                "/console/login", data={"link": secret}, headers={"Origin": told["address"]}
            )
            assert entered.status_code == 303
            figures = client.get("/metrics").text
        child.terminate()
        assert child.wait() == 0
    return Station(home, figures)


def test_a_station_shows_every_metric_of_the_table_and_no_other(station: Station) -> None:
    shown = {
        f"{each.name}_total" if each.type == "counter" else each.name: each
        for each in text_string_to_metric_families(station.figures)
    }
    assert {*shown} == {each.name for each in METRICS}
    for each in METRICS:
        family = shown[each.name]
        assert family.type == each.kind.value, each.name
        assert family.documentation == each.meaning or each.plane == "process", each.name
        for sample in family.samples:
            assert {*sample.labels} - {"le"} == {*each.labels}, each.name


def test_the_figures_of_a_fresh_station_are_those_of_a_fresh_station(station: Station) -> None:
    lines = station.figures.splitlines()
    assert "accord_nats_up 1.0" in lines
    assert "accord_relay_oldest_unacknowledged_seconds 0.0" in lines
    assert 'accord_plane_state{plane="authority",state="ready"} 1.0' in lines
    assert 'accord_store_failures_total{store="relay"} 0.0' in lines
    [members] = [line for line in lines if line.startswith("accord_community_members{")]
    assert members.endswith(" 1.0")
    [folded] = [line for line in lines if line.startswith("accord_fold_events_total{")]
    assert float(folded.split()[1]) >= 1


def test_the_audit_of_a_station_tells_who_did_what_on_every_plane(station: Station) -> None:
    told = station.audit()
    assert [each["at"] for each in told] == sorted(each["at"] for each in told)
    found = {(each["plane"], each["what"]): each for each in told}
    assert found["station", "station.started"]["who"] == "operator"
    assert found["station", "console.link_issued"]["result"] == "done"
    assert found["station", "console.entered"]["who"].startswith("console ")
    assert found["community", "community.created"]["who"].startswith("ed25519:")
    assert found["relay", "token.minted"]["who"] == "concierge"
    assert found["relay", "gateway.enrolled"]["who"] == "gateway concierge"
    assert found["webchat", "space.made"]["who"] == "operator"
    assert found["authority", "created"]["about"] == "bridge"


def test_the_audit_is_narrowed_by_plane_actor_time_and_number(station: Station) -> None:
    assert {each["plane"] for each in station.audit("--plane", "relay")} == {"relay"}
    assert {each["who"] for each in station.audit("--actor", "concierge")} == {
        "concierge",
        "gateway concierge",
        "agent concierge",
    }
    assert station.audit("--since", "2999-01-01T00:00:00Z") == []
    assert len(station.audit("--since", "1d", "--lines", "2")) == 2
