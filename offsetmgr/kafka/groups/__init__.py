"""Membership of Kafka consumer groups: the group lock, the static member that holds it, and ordinary members."""
