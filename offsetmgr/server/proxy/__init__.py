"""The relay: clients bootstrap from a manager and reach the real brokers through it, so that every address they ever
learn is one of ours.

Only what hides the real cluster, forwards frames, and checks who may commit belongs here; what is answered from the
offset manager itself is in ``server.handlers``.
"""

from __future__ import annotations
