"""Live migration: a versioned znode has the storage mode of a group, and its members follow the znode without a
restart.

`live_migration` changes the mode, `copy_plan` decides which offsets must be copied first, and `switch_evidence` has
what was observed. `offsetmgr.stores.switched` is the side of the members. The idea is KIP-125's; the reasons are in
docs/adr, "The live switch".
"""
