"""The content of Kafka's nodes in ZooKeeper (0.7, and 0.8 and later): typed, parsed, no I/O.

A parser takes the node's path (for its errors), its bytes, and an optional list of `Notes`:

* without the list it is strict, for decisions: an unknown version raises `UnknownVersion`;
* with it, it is tolerant, for display: an unknown version or field becomes a note next to the value.

Undecodable content is `CorruptData` either way. Every error names the node; no error quotes a value that may be a
secret. ``str()`` of a value is the line that users see.

Each kind is imported from its own module: most commands need one or two of them, and start faster.
"""
