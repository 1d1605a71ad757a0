"""Kafka's nodes in ZooKeeper, of Kafka 0.7, 0.8 and later: their paths, and parsers for their content.

A parser takes the node's path (for error messages), the node's bytes, and an optional list of `Notes`:

* Without the list the parser is strict: it raises `UnknownVersion` for an unknown version. Code that makes a decision
  from the value uses this mode.
* With the list the parser is tolerant: it adds a note about each unknown version or field to the list. Code that
  displays the value uses this mode.

In both modes, content that cannot be decoded raises `CorruptData`. Every error names the node, and no error quotes a
value that may be a secret. ``str()`` of a parsed value is the line that users see.

`cluster_nodes` and `tree` read nodes from a session; all other modules do no I/O. This ``__init__`` imports no module:
most commands need only one or two of the modules, and start faster without the others.
"""
