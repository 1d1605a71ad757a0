"""Live migration: a versioned znode holds the storage mode of a group, and the group's members follow changes of the
znode without a restart.

`live_migration` copies the offsets that the remaining store lacks, and then changes the mode. `switch_evidence` defines
the values in which a switch reports its observations. `offsetmgr.stores.switched` contains the code that runs in the
group's members. The idea comes from KIP-125; docs/contributing/adr, "The live switch", gives the reasons.
"""
