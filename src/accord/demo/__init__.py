"""The demo: a small community on its own station, so that every page of the console has content.

Everything is done through public interfaces: members have their own keys and devices and join by
invites, visitors use the web chat, services are admitted by the authority.
"""

from accord.demo.plane import DemoPlane
from accord.demo.story import prepare_demo

__all__ = ["DemoPlane", "prepare_demo"]
