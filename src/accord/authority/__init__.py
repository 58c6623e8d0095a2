"""The control plane: what was accepted, what is offered, and what may touch what on NATS."""
