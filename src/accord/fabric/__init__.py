"""What a service, an app or a device imports to work under its contract, over NATS."""
