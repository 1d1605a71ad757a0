"""What a controller is asked to do through ZooKeeper: preferred election, reassignment, deletion of topics.

`state` is what must be known first and `reading` reads it; `election`, `reassignment` and `deletion` decide (pure: a
state in, steps out) and say how far the controller is; `carryout` writes and waits.  Controllers that keep their
metadata in ZooKeeper watch these nodes until Kafka 3.9, the last release with ZooKeeper
(kafka.controller.KafkaController); they check almost nothing of what they are asked there, so it is checked here.
"""
