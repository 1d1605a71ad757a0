"""offsetmgr: where is each consumer group, and how to move that answer without losing or repeating work."""

from __future__ import annotations
