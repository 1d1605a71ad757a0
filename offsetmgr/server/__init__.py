"""The server that Kafka clients connect to.

`network` has the sockets, `apis` answers the requests about groups and offsets, and `proxy` (the relay) forwards the
others to the real brokers. The offsets come from a `backend.Backend`: `manager_backend` is the offset manager's,
`store_backends` has those for any `OffsetStore`. `process` starts all of it.
"""
