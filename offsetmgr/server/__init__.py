"""The offset manager's listener: Kafka's protocol towards clients.

`apis` answers offsetmgr's own requests, `proxy` forwards the others. Behind the listener is a `backend.Backend`: the
offset manager, or any `OffsetStore`.
"""
