"""The relay: agents in chats, without an inbound port and without a platform's secrets.

`rules` is pure: what goes over the socket, and who receives an event. The connector, the platforms
and the gateway use it to listen, store and send.
"""
