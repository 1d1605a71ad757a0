"""An offset manager inside a program, for Spark drivers and other programs without an extra server.

Programs use `offset_manager`; `request_adapter` turns its calls into requests to the runtime; `node_assembly` opens and
closes the `offsetmgr.manager.node`.
"""

from offsetmgr.manager.embedded.offset_manager import OffsetManager as OffsetManager

__all__ = ["OffsetManager"]
