"""The server that Kafka clients connect to.

`network` handles sockets and frames, `apis` handles requests about groups and offsets, and `proxy` (the relay) forwards
all other requests to the real brokers. Handlers read and write offsets through a `backend.Backend`. The interface has
two implementations: `manager_backend` for the offset manager, and `store_backends` for any `OffsetStore`.
`manager_process` runs the server.
"""
