"""How nodes find each other: hints from the local network, and the book of peers.

A hint says where somebody might be and is worth a question, no more. Only a fresh manifest that
the node itself signed makes a peer.
"""

from accord.community.discovery.mdns import Announcement, LocalNetwork
from accord.community.discovery.peers import Endpoint, Hint, Peer, PeerBook

__all__ = ["Announcement", "Endpoint", "Hint", "LocalNetwork", "Peer", "PeerBook"]
