"""`python -m accord.bridge`: print the contract of the default capabilities.

A node may offer less.
"""

import sys

from accord.bridge.rules import make_offering
from accord.bridge.settings import BridgeSettings
from accord.capabilities.doors.local import descriptions
from accord.kernel import canonical

if __name__ == "__main__":
    chosen = BridgeSettings().capabilities
    made = make_offering(form for form in descriptions().values() if form["name"] in chosen)
    sys.stdout.buffer.write(canonical.encode(made.manifest))
