"""The live switch: where a group's offsets are stands in a versioned znode, and members follow it without a bounce.

``records`` is what the nodes say (pure), ``nodes`` reads and writes them, ``mode_listener`` is the member's side,
``store`` the `OffsetStore` that follows, ``switch`` the side of whoever changes the mode, ``copy_plan`` which offsets
must be copied first and ``evidence`` what was seen (both pure). They see the store and cluster protocols and the
ZooKeeper package, never a concrete store. The idea is KIP-125's; the reasons are in docs/adr, "The live switch".
"""
