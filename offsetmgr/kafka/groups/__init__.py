"""Membership in Kafka consumer groups: the group lock (for one edit, or for longer as a static member), and ordinary
members."""
