"""What Kafka's nodes in ZooKeeper say, in both eras (0.7, and 0.8 and later): typed, parsed, no I/O.

A parser takes the node's path (for its errors), its bytes, and an optional list of `Notes`:

* without the list it is strict, for decisions: a version that it does not know is `UnknownVersion`;
* with it, it is tolerant, for showing: what it does not know (a version, a field) becomes a note beside the value.

Whatever cannot be understood at all is `CorruptData` either way. Every error names the node; no error quotes a value
that may be a secret. ``str()`` of a value is the line that people are shown.

Each kind is imported from its own module: most commands read one or two of them, and start the sooner.
"""
