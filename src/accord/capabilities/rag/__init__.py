"""Retrieval over documents in the blob store: `rag.query`, `rag.ingest` and `rag.list_corpora`.

A name is imported when it is first used, so that an executor that only cuts documents loads no
server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from accord.capabilities.rag.corpora import Announcement, CommunityAnnouncer, Corpora
    from accord.capabilities.rag.prepared import IngestRequest
    from accord.capabilities.rag.service import open_corpora, register
    from accord.capabilities.rag.store import CorpusId, StoredDocument

__all__ = [
    "Announcement",
    "CommunityAnnouncer",
    "Corpora",
    "CorpusId",
    "IngestRequest",
    "StoredDocument",
    "open_corpora",
    "register",
]

_HOMES: Final = {
    "Announcement": "corpora",
    "CommunityAnnouncer": "corpora",
    "Corpora": "corpora",
    "CorpusId": "store",
    "IngestRequest": "prepared",
    "StoredDocument": "store",
    "open_corpora": "service",
    "register": "service",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
