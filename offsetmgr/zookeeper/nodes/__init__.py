"""Kafka's nodes in ZooKeeper, of Kafka 0.7, 0.8 and later: their paths, and parsers for their content.

A parser takes the node's path (for its errors), its bytes, and an optional list of `Notes`:

* Without the list the parser is strict, for decisions: an unknown version raises `UnknownVersion`.
* With the list the parser is tolerant, for display: it adds a note about an unknown version or field to the list.

Undecodable content raises `CorruptData` in both cases. Every error names the node, and no error quotes a value that may
be a secret. ``str()`` of a parsed value is the line that users see.

`cluster_nodes` and `tree` read nodes from a session; all other modules do no I/O. This package imports no module
itself: most commands need only one or two of them and start faster without the others.
"""
