import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from accord.telemetry.metrics import METRICS, MetricKind

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
NAME = re.compile(r"\b(?:accord|process)_[a-z0-9_]+")


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not here; Debian's package prometheus has it")
    found = subprocess.run(
        [program, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stdout + found.stderr


def alerts() -> list[dict[str, Any]]:
    read = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def known() -> set[str]:
    """Every name that a query may use."""
    names = {each.name for each in METRICS}
    for each in METRICS:
        if each.kind is MetricKind.HISTOGRAM:
            names |= {f"{each.name}_{part}" for part in ("bucket", "sum", "count")}
    return names


def test_every_metric_of_the_alerts_and_their_tests_exists() -> None:
    for file in ("alerts.yml", "alerts_test.yml"):
        used = {*NAME.findall((FOLDER / file).read_text())}
        assert used
        assert used <= known()


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    guide = (ROOT / "docs" / "guides" / "monitoring.md").read_text()
    for alert in alerts():
        name = alert["alert"]
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["runbook"] == f"docs/guides/monitoring.md#{name.lower()}"
        assert f"### {name}\n" in guide
    assert guide.count("\n### Accord") == len(alerts())


def test_every_alert_is_seen_to_fire() -> None:
    text = (FOLDER / "alerts_test.yml").read_text()
    for alert in alerts():
        assert f'{{alertname="{alert["alert"]}"}}' in text


def test_promtool_takes_the_rules() -> None:
    promtool("check", "rules", "alerts.yml")


def test_promtool_takes_the_configuration() -> None:
    promtool("check", "config", "prometheus.yml")


def test_each_alert_fires_when_it_should_and_none_on_a_station_that_is_well() -> None:
    promtool("test", "rules", "alerts_test.yml")
