"""The relay: a Kafka proxy in front of the real brokers.

Clients bootstrap from a manager and reach the brokers through that manager, because every address in a response is one
of the manager's ports. The relay forwards frames, answers some requests itself, and checks that only group members
commit. In the modules of this package, "the managers" means all manager processes that share one offsets topic.
"""

from __future__ import annotations
