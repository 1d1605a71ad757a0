"""The relay: clients bootstrap from a manager and reach the real brokers through it, so every address that they receive
is one of ours.

This package hides the real cluster, forwards frames, and checks which clients may commit. Requests that the offset
manager answers are in ``server.apis``.
"""

from __future__ import annotations
