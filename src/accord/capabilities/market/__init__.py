"""A community's market: `market.list`, `market.post`, `market.expire` and `market.search`."""

from accord.capabilities.market.handlers import register

__all__ = ["register"]
