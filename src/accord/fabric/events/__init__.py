"""Events: published durably, heard live, or taken by a durable group."""

from accord.fabric.events.consuming import EventHandler, Group, consume
from accord.fabric.events.listening import listen
from accord.fabric.events.publishing import publish
from accord.fabric.events.received import Received

__all__ = ["EventHandler", "Group", "Received", "consume", "listen", "publish"]
