"""An offset manager inside a program, for Spark drivers and others that want no extra server.

`manager` is what programs use; `requests` turns their calls into requests to the runtime; `assembly` puts topic, group
membership and runtime together.
"""

from offsetmgr.embedded.manager import OffsetManager as OffsetManager

__all__ = ["OffsetManager"]
