"""The server that Kafka clients connect to.

`network` handles sockets and frames, `apis` handles requests about groups and offsets, and `proxy` (the relay) forwards
all other requests to the real brokers. Handlers read and write offsets through a `backend.Backend`: `manager_backend`
implements it for the offset manager, `store_backends` for any `OffsetStore`. `process` starts these parts.
"""
