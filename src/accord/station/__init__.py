"""The station: `accord up` runs the planes together on one machine.

It loads the settings, locks the home, starts and supervises the planes, serves `/livez`, `/readyz`
and `/metrics`, and drains everything on stop. A plane implements the `Plane` protocol.
`accord.station.run.serve` runs it all.
"""

from accord.station.errors import SettingsError, StationError
from accord.station.plane import Plane, PlaneContext, PlaneReport, PlaneState
from accord.station.settings import Settings, load

__all__ = [
    "Plane",
    "PlaneContext",
    "PlaneReport",
    "PlaneState",
    "Settings",
    "SettingsError",
    "StationError",
    "load",
]
