"""The server that Kafka clients connect to.

`network` handles sockets and frames, `apis` handles requests about groups and offsets, and `proxy` (the relay) forwards
all other requests to the real brokers. Handlers read and write offsets through a `backend.Backend`. It has two
implementations: `manager_backend` serves the offset manager, and `store_backends` serves any `OffsetStore`. `process`
runs the server.
"""
