"""HTTP parts that every plane shares: bodies, client addresses, limits, guarded requests."""
