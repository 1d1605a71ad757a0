"""The paths of the nodes that all releases of Kafka create in ZooKeeper, and parsers for the content of these nodes.

A parser takes the node's path (for error messages), the node's bytes, and an optional list of `Notes`:

* Without the list, the parser is strict: it raises `UnknownVersion` if the version of the content is unknown. Code that
  makes a decision from the value uses this mode.
* With the list, the parser is tolerant: if a version or field is unknown, the parser adds a note to the list. Code that
  displays the value uses this mode.

In both modes, content that cannot be decoded raises `CorruptData`. Every error names the node, and no error quotes a
value that may be a secret. ``str()`` of a parsed value returns the line that is displayed to users; a parser of nodes
that are only displayed returns this line.

`cluster_nodes` and `tree` read nodes from a session; all other modules do no I/O. This ``__init__`` imports no module,
because most commands need only one or two of the modules and start faster if the other modules are not imported.
"""
