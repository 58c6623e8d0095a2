import json
import re
from pathlib import Path
from typing import Any

import yaml
from tests.deploy.test_prometheus_rules import NAME, known, promtool

from accord.telemetry.metrics import METRICS

FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "accord.json"
# What Grafana puts in before it asks.
VARIABLES = {"$job": "accord", "$instance": ".*", "$__rate_interval": "1m"}


def board() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(FILE.read_text())
    return read


def queries() -> list[str]:
    return [each["expr"] for panel in board()["panels"] for each in panel.get("targets", ())]


def test_every_metric_of_the_dashboard_exists_and_every_metric_is_on_it() -> None:
    used = {name for query in queries() for name in NAME.findall(query)}
    assert used <= known()
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    started = {"process_start_time_seconds"}  # shown as the uptime
    assert {each.name for each in METRICS} - bases == started


def test_there_is_a_row_for_every_plane() -> None:
    rows = [each["title"] for each in board()["panels"] if each["type"] == "row"]
    assert rows == [
        "Station",
        "Process",
        "Stores",
        "Community",
        "Language models",
        "Relay",
        "Authority",
        "Pipeline",
    ]


def test_no_data_source_and_no_station_is_wired_in() -> None:
    for panel in board()["panels"]:
        if panel["type"] == "row":
            continue
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            for name in NAME.finditer(target["expr"]):
                assert target["expr"][name.end() :].startswith('{job="$job", instance=~"$instance"')
    variables = {each["name"]: each["type"] for each in board()["templating"]["list"]}
    assert variables == {"datasource": "datasource", "job": "query", "instance": "query"}
    assert "id" not in board()


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = board()["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    rules = []
    for number, query in enumerate(queries()):
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        rules.append({"record": f"query:{number}", "expr": query})
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(file))
