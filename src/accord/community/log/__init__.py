"""The durable log of a community: every event that this node has proven, and what they come to.

An event is proven before it is stored, stored before it is acknowledged, and folded before anybody
is told of it. The store is the node's one store of communities; `open_log` opens one log in it.
`snapshots` and `upkeep` keep it short, `export_log`, `import_log` and `verify_log` look after it
as a whole.
"""

from accord.community.log.audit import Audit, verify_log
from accord.community.log.intake import Receipt, Refused
from accord.community.log.log import Log, News, open_log
from accord.community.log.marker import Note
from accord.community.log.provers import Provers
from accord.community.log.stubs import Stub
from accord.community.log.tables import SCHEMA, STREAM
from accord.community.log.transfer import Imported, export_log, import_log

__all__ = [
    "SCHEMA",
    "STREAM",
    "Audit",
    "Imported",
    "Log",
    "News",
    "Note",
    "Provers",
    "Receipt",
    "Refused",
    "Stub",
    "export_log",
    "import_log",
    "open_log",
    "verify_log",
]
