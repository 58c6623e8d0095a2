"""What a node offers on the bus, one folder per capability.

`data` describes the capabilities as JSON, `service` serves them, `rules` holds the pure part.
"""
