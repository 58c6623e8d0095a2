"""The demo street: a small community on a station of its own, so that every page shows something.

`prepared` says whether a home may hold it, `DemoPlane` tells the story once and keeps its two
services running. Everything is done by the ways that are open to anybody: members have keys and
devices of their own and join by invites, visitors write in the web chat, services are let in by the
authority. Nothing is forged, and nothing below knows that this folder exists.
"""

from accord.demo.home import prepared
from accord.demo.plane import DemoPlane

__all__ = ["DemoPlane", "prepared"]
