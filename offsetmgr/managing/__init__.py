"""One member of the managers put together: topic, log, runtime, and membership of the managers' group.

What `offsetmgr manager serve` and `OffsetManager` have in common, so that neither leaves out a check of the other's.
It knows no listener and no client: `server` and `embedded` put theirs before it.

`settings` is what it is told, `managing` the whole, `topicwatch` looks whether the topic stays what it was.
"""

from offsetmgr.managing.managing import Managing as Managing
from offsetmgr.managing.settings import Settings as Settings

__all__ = ["Managing", "Settings"]
