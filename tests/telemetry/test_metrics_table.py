import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from docs.making.metrics import reference_page
from prometheus_client.metrics_core import Metric

from accord.kernel.clock import Durations
from accord.telemetry.metrics import METRICS, MetricKind, family, histogram

ROOT = Path(__file__).parents[2]
BASE_UNITS = ("seconds", "bytes", "seconds since 1970")


def test_the_reference_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "reference" / "metrics.md").read_text() == reference_page()


def test_names_follow_the_rules_of_prometheus() -> None:
    for each in METRICS:
        assert re.fullmatch(r"(accord|process)_[a-z0-9]+(_[a-z0-9]+)*", each.name)
        assert each.name.endswith("_total") == (each.kind is MetricKind.COUNTER), each.name
        stem = each.name.removesuffix("_total")
        if each.unit in BASE_UNITS:
            assert stem.endswith(each.unit.split()[0]), each.name
        if each.unit == "seconds since 1970" and each.plane != "process":
            assert stem.endswith("_timestamp_seconds"), each.name
        assert not re.search(r"_(ms|millis|minutes|kb|mb|percent)(_|$)", each.name)
        assert not {"le", "quantile", "job", "instance"} & {*each.labels}


def test_every_metric_has_one_row_and_a_sentence() -> None:
    assert max(Counter(each.name for each in METRICS).values()) == 1
    for each in METRICS:
        assert each.meaning.endswith(".")
        assert "|" not in each.meaning


def sampled(metrics: Iterable[Metric]) -> dict[str, float]:
    return {
        f"{each.name}{sorted(each.labels.items())}": each.value
        for metric in metrics
        for each in metric.samples
    }


def test_a_family_is_typed_and_labelled_as_the_table_says() -> None:
    found = family("accord_plane_restarts_total", {("relay",): 2.0})
    assert (found.type, found.documentation) == ("counter", "Restarts of a plane.")
    assert sampled([found]) == {"accord_plane_restarts_total[('plane', 'relay')]": 2.0}
    assert sampled([family("accord_bus_in_hand", 3)]) == {"accord_bus_in_hand[]": 3}


def test_what_is_not_in_the_table_cannot_be_shown() -> None:
    with pytest.raises(KeyError, match="accord_invented_total"):
        family("accord_invented_total", 1)


def test_a_histogram_counts_up_to_each_border() -> None:
    taken = Durations()
    taken.add(0.02)
    found = sampled([histogram("accord_store_commit_seconds", {("relay",): taken})])
    at = "[('le', '{}'), ('store', 'relay')]"
    assert found["accord_store_commit_seconds_bucket" + at.format("0.01")] == 0
    assert found["accord_store_commit_seconds_bucket" + at.format("0.025")] == 1
    assert found["accord_store_commit_seconds_count[('store', 'relay')]"] == 1
    assert found["accord_store_commit_seconds_sum[('store', 'relay')]"] == pytest.approx(0.02)
