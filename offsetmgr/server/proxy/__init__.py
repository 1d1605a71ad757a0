"""The relay: a Kafka proxy in front of the real brokers.

Clients bootstrap from a manager and reach the brokers through that manager, because every address in a response is one
of the manager's ports. The relay forwards frames, answers some requests itself, and checks that only group members
commit. "The managers" are all processes that share the offsets topic.
"""

from __future__ import annotations
