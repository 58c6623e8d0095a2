"""A community's market: `market.list`, `market.post`, `market.expire` and `market.search`."""

from accord.capabilities.market.rules import client_id_for, is_posted_for, matches, page, show_post
from accord.capabilities.market.service import PostSearch, rank_by_words, register

__all__ = [
    "PostSearch",
    "client_id_for",
    "is_posted_for",
    "matches",
    "page",
    "rank_by_words",
    "register",
    "show_post",
]
