"""What an instance may see of itself: its record, links, channels and policies; no secret."""

from typing import Any, Final

from sqlalchemy import Connection, select

from accord.kernel import canonical
from accord.relay.connector.control import records
from accord.relay.connector.control.tables import (
    bindings,
    dm_defaults,
    gateway_secrets,
    grants,
    identities,
    principals,
    relevance,
    route_claims,
)

_MOST: Final = 1000


def report(connection: Connection, instance: str, now: int) -> dict[str, Any]:
    """What is known of an instance, at most the first thousand of each kind."""
    record = records.need(connection, instance)

    def rows(table: Any, *names: str) -> list[dict[str, Any]]:
        columns = [table.c[name] for name in names]
        found = connection.execute(
            select(*columns).where(table.c.instance == instance).order_by(*columns).limit(_MOST)
        )
        return [dict(row) for row in found.mappings()]

    ends = [row["expires_at"] for row in rows(gateway_secrets, "expires_at")]
    return {
        "tenant": record.tenant,
        "instanceId": record.instance,
        "gatewayId": record.gateway_id,
        "name": record.name,
        "origin": record.origin,
        "sessionKeys": record.dialect or "hermes",
        "hasWakeUrl": record.wake_url is not None,
        "createdAt": record.created_at,
        "secrets": sum(end is None or end > now for end in ends),
        "identities": rows(identities, "platform", "bot_id"),
        "routeKeys": rows(route_claims, "platform", "route_key"),
        "bindings": rows(bindings, "platform", "user_id"),
        "dmDefaults": rows(dm_defaults, "platform", "user_id"),
        "scopes": rows(grants, "platform", "scope_id", "channel_id", "owner"),
        "principals": [
            {**row, "allow": canonical.decode(row["allow"])}
            for row in rows(principals, "platform", "policy", "allow")
        ],
        "relevance": [
            {
                "platform": row["platform"],
                "requireAddress": bool(row["require_address"]),
                "freeResponseScopes": canonical.decode(row["free_response_scopes"]),
                "allowOtherBots": bool(row["allow_other_bots"]),
            }
            for row in rows(
                relevance,
                "platform",
                "require_address",
                "free_response_scopes",
                "allow_other_bots",
            )
        ],
    }
