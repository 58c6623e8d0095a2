"""The relay: agents in chats, without an inbound port and without a platform's secrets.

`wire` and `gate` are pure: what goes over the socket, and who receives an event. The connector, the
platforms and the gateway stand on them and do the listening, storing and speaking.
"""
