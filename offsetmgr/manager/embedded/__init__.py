"""An offset manager inside a program, for Spark drivers and others that want no extra server.

`manager` is what programs use; `requests` turns their calls into requests to the runtime; `node_assembly` puts them
before `offsetmgr.managing`.
"""

from offsetmgr.manager.embedded.offset_manager import OffsetManager as OffsetManager

__all__ = ["OffsetManager"]
