"""An offset manager that runs inside a program, such as a Spark driver, without a separate server process.

Programs use `OffsetManager` in `offset_manager`. `request_adapter` turns the calls of `OffsetManager` into requests to
the runtime. `node_assembly` opens and closes the node (`offsetmgr.manager.node`).
"""

from offsetmgr.manager.embedded.offset_manager import OffsetManager as OffsetManager

__all__ = ["OffsetManager"]
