"""`python -m accord.bridge`: the contract of what crosses by default, for writers of callers.

A node may offer less of it than that. Owns nothing.
"""

import sys

from accord.bridge.forms import known_forms
from accord.bridge.offering import offering
from accord.bridge.settings import BridgeSettings
from accord.kernel import canonical

if __name__ == "__main__":
    chosen = BridgeSettings().capabilities
    made = offering(form for form in known_forms().values() if form["name"] in chosen)
    sys.stdout.buffer.write(canonical.encode(made.manifest))
