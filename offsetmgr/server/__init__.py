"""The offset manager's listener: Kafka's protocol towards clients.

`handlers` answer what is ours, `proxy` passes on the rest. What is behind the listener is a `backend.Backend`: the
offset manager, or any `OffsetStore`.
"""
