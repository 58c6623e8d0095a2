"""What a node offers on the bus, one folder for each family of capabilities.

A folder's `data` describes its capabilities (`accord.community.envelope.schemas`); its handlers
serve them.
"""
