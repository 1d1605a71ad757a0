"""`recreate` deletes and recreates a topic."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from processes import create_topic, fill, wait_for


def recreate(bootstrap: str, topic: str, records: int = 1000, partitions: int = 1) -> None:
    """The new topic has ``records`` records in partition 0."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(60)

    def created() -> bool:
        """The controller accepts the name again once the deletion is complete."""
        try:
            create_topic(bootstrap, topic, partitions)
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            return False
        return True

    wait_for(created, f"{topic} is recreated")
    fill(bootstrap, topic, records)
