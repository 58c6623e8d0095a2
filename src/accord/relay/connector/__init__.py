"""The connector: holds every platform's secrets, decides who gets what, and delivers it.

`control` knows who is who: gateways and their secrets, links, bindings, grants, policies, the
vault. `delivery` moves what there is to move. They share one store, `RELAY`, and meet in two small
interfaces: `control.directory.Directory` and `control.directory.ConnectorHandle`.
"""

from accord.relay.connector.schema import METADATA, RELAY

__all__ = ["METADATA", "RELAY"]
