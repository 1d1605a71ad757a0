"""Live migration: a versioned znode holds the storage mode of a group, and the group's members follow changes of the
znode without a restart.

`live_migration` changes the mode, `copy_plan` determines which offsets must be copied first, and `switch_evidence`
defines the values that a switch observes. `offsetmgr.stores.switched` implements the members' side. The idea comes from
KIP-125; docs/adr, "The live switch", gives the reasons.
"""
