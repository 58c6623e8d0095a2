"""Chat platforms, one folder each; all of them are `accord.relay.connector.platform.Platform`."""
