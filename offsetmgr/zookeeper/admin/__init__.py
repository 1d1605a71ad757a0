"""Requests to the controller through ZooKeeper: preferred replica election, reassignment, topic deletion.

`state` defines the facts about the cluster, and `admin_reader` reads them. `election`, `reassignment` and `deletion`
plan a request and compute its progress from these facts (pure). `submit` writes a request and waits for the controller.

Controllers that store their metadata in ZooKeeper watch these nodes (kafka.controller.KafkaController); Kafka 3.9 is
the last such release. They check almost nothing of a request, so these modules check it first.
"""
