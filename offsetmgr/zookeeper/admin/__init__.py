"""Requests to the controller through ZooKeeper: preferred replica election, reassignment, topic deletion.

`state` defines the facts about the cluster, and `admin_reader` reads them. From these facts, `plan` plans the steps of
a request and computes their progress; it is pure. `submit` writes a request and waits for the controller.

A controller that stores its metadata in ZooKeeper watches the request nodes (kafka.controller.KafkaController); Kafka
3.9 is the last release with such controllers. The controller performs few checks of a request, so this package
validates each request before writing it.
"""
