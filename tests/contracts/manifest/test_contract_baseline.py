from typing import Any

import pytest
from hypothesis import given
from tests.fakes.strategies import manifests

from accord.contracts import ContractError, validate, with_baseline
from accord.contracts.effective import baseline

HEARTBEAT = {"contract": "trellis.health@v1", "events": {"publish": ["Health.Heartbeat"]}}


def uses(**manifest: Any) -> Any:
    return with_baseline(manifest)["uses"]


def test_a_service_publishes_heartbeats() -> None:
    assert uses(id="g@v1", kind="service") == {"required": {"health": HEARTBEAT}}


def test_the_health_contract_does_not_use_itself() -> None:
    assert "uses" not in with_baseline({"id": "trellis.health@v1", "kind": "service"})


def test_people_and_agents_have_sessions() -> None:
    for kind in ("app", "agent"):
        assert uses(id="g@v1", kind=kind)["required"] == {
            "auth": {
                "contract": "trellis.auth@v1",
                "rpc": {"call": ["Auth.Sessions.Me", "Auth.Sessions.Logout"]},
            }
        }
    assert list(uses(id="g@v1", kind="device")["required"]) == ["health", "auth"]


def test_state_is_used_by_whoever_has_some() -> None:
    assert uses(id="g@v1", kind="service", state={})["required"]["state"]["rpc"]["call"] == [
        *("State.Get", "State.Put", "State.Delete", "State.List")
    ]


@pytest.mark.parametrize("group", ["required", "optional"])
def test_an_explicit_alias_gets_the_selector_where_the_author_put_it(group: str) -> None:
    written = {
        "contract": "trellis.health@v1",
        "events": {"publish": ["Health.Other"], "subscribe": ["X"]},
        "rpc": {"call": ["Health.Get"]},
    }
    manifest = {"id": "g@v1", "kind": "service", "uses": {group: {"health": written}}}
    merged = with_baseline(manifest)
    assert merged["uses"] == {
        group: {
            "health": {
                **written,
                "events": {"publish": ["Health.Other", "Health.Heartbeat"], "subscribe": ["X"]},
            }
        }
    }
    assert manifest["uses"] == {group: {"health": written}}


def test_an_alias_that_names_another_contract_is_refused() -> None:
    with pytest.raises(ContractError, match="is kept for"):
        uses(id="g@v1", kind="service", uses={"optional": {"health": {"contract": "other@v1"}}})


@given(manifests())
def test_merging_is_valid_complete_and_done_once(manifest: dict[str, Any]) -> None:
    for group in manifest.get("uses", {}).values():
        for use in baseline(manifest):
            group.pop(use.alias, None)
    manifest.pop("eventConsumers", None)
    merged = with_baseline(manifest)
    assert validate(merged) == []
    assert with_baseline(merged) == merged
    for use in baseline(manifest):
        assert use.alias in merged["uses"]["required"]
