"""Asking why costs the same however much has been taken: the plans of SQLite say so."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event

from accord.relay.connector import explain_event, latest_events


@pytest.fixture
def where(sqlite_where: str) -> str:
    """Plans are read off one engine."""
    return sqlite_where


async def test_no_explanation_reads_a_whole_table(open_world: Any) -> None:
    asked: list[tuple[str, Any]] = []
    async with open_world() as world:
        world.link("ann", "alpha")
        inbound = world.chat.write("ann", "c1", "x", event_id="theirs")
        await world.received("theirs")
        ours = (await world.delivery.why("theirs")).event
        world.chat.write("eve", "c1", "x", event_id="counted")
        await world.received("counted")
        counted = (await world.delivery.why("counted")).event
        assert (await world.delivery.why(counted)).is_counted
        await world.delivery.take(replace(inbound, bot_id="another", event_id="other"))

        def explain(connection: Connection) -> list[str]:
            driver: Any = connection.connection.dbapi_connection
            event.listen(connection, "before_cursor_execute", note)
            for name in (ours, "theirs", counted, "counted", "nobody's"):
                explain_event(connection, name)
            event.remove(connection, "before_cursor_execute", note)
            plans = [driver.execute(f"EXPLAIN QUERY PLAN {text}", given) for text, given in asked]
            return [step[3] for plan in plans for step in plan]

        def note(_: Any, __: Any, text: str, given: Any, *___: Any) -> None:
            asked.append((text, given))

        steps = await world.store.read(explain)
        assert len(asked) > 8
        assert [step for step in steps if step.startswith("SCAN")] == []
        latest = await world.store.read(lambda c: latest_events(c, 10))
        assert ours in [each.event for each in latest]
        assert [each.is_counted for each in latest].count(True) == 1
        assert len(latest) == 3
