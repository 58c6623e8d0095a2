"""A node among nodes: opening it, reaching others, meeting them, serving its owner."""

from accord.community.node.dialing import Dialler
from accord.community.node.hosted import Hosted
from accord.community.node.node import Node, open_node
from accord.community.node.settings import NodeSettings

__all__ = ["Dialler", "Hosted", "Node", "NodeSettings", "open_node"]
