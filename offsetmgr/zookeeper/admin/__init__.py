"""Requests to the controller through ZooKeeper: preferred election, reassignment, deletion of topics.

`state` holds the facts and `admin_reader` reads them. `election`, `reassignment` and `deletion` decide (pure: a state
in, steps out) and report how far the controller is. `submit` writes a request and waits for it. Controllers that keep
their metadata in ZooKeeper watch these nodes until Kafka 3.9, the last release with ZooKeeper
(kafka.controller.KafkaController). They check almost nothing of a request, so these modules check it first.
"""
