"""A process that runs one `ZookeeperConsumer` and writes each message to a file before it fetches the next.

Argument: a JSON object with the consumer's arguments (``settings`` as an object), ``topics`` (topic -> streams) or
``white_list`` and ``streams``, and the output file. ``think_ms`` is the processing time of each message. A member with
``ignore_lease`` is faulty: it delivers messages without checking its session's lease.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from offsetmgr.consumer import ConsumerSettings, MessageStream, StreamMessage, ZookeeperConsumer
from offsetmgr.consumer.streams import StreamState


def _line(message: StreamMessage, now_ms: int) -> bytes:
    def text(data: bytes | None) -> bytes:
        return rb"\N" if data is None else data

    numbers = b"%d\t%d" % (message.partition, message.offset)
    return b"\t".join((numbers, text(message.key), text(message.value), message.topic.encode(), b"%d\n" % now_ms))


def consume(stream: MessageStream, output: int, think_s: float) -> None:
    for message in stream:
        now_ms = time.time_ns() // 1_000_000
        os.write(output, _line(message, now_ms))  # one write per line, so that a SIGKILL leaves whole lines
        if think_s:
            time.sleep(think_s)


def main(arguments: dict[str, Any]) -> None:
    logging.basicConfig(format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("offsetmgr").setLevel(logging.INFO)
    output = os.open(arguments.pop("output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    think_s = arguments.pop("think_ms", 0) / 1000
    if arguments.pop("ignore_lease", False):
        StreamState.may_deliver = lambda self: True  # type: ignore[method-assign]
    topics, white_list = arguments.pop("topics", None), arguments.pop("white_list", None)
    count = arguments.pop("streams", 1)
    consumer = ZookeeperConsumer(**{**arguments, "settings": ConsumerSettings(**arguments.pop("settings", {}))})
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    if topics is not None:
        streams = [one for of_topic in consumer.create_message_streams(topics).values() for one in of_topic]
    else:
        streams = consumer.create_message_streams_by_filter(white_list=white_list, streams=count)
    readers = [threading.Thread(target=consume, args=(stream, output, think_s)) for stream in streams]
    for reader in readers:
        reader.start()
    sys.stderr.write(f"joined as {consumer.member_id}\n")
    while not stopped.wait(0.2):
        if consumer.error is not None:
            raise consumer.error
    consumer.shutdown()
    for reader in readers:
        reader.join()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
