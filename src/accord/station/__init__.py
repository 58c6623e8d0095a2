"""The station: `accord up` puts the planes together on one machine.

It reads the settings, takes the home folder, starts the planes and keeps them alive, answers
`/livez`, `/readyz` and `/metrics`, and drains everything when it is asked to stop. A plane plugs
in by the `Plane` protocol and gets its ground (settings, clock, device key, store) when it is
made; the station never knows what a plane does. `accord.station.run.serve` runs it all.
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
