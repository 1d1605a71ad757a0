"""A Spark job whose committed offsets every lag tool shows."""

import os

from offsetmgr.spark import OffsetCommitter, open_store, session

brokers = os.environ["OFFSETMGR_BOOTSTRAP_SERVER"]
spark = session("shop-job", master="local[1]")
orders = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", "orders")
stream = orders.option("startingOffsets", "earliest").load().writeStream.format("noop").trigger(availableNow=True)
with OffsetCommitter(open_store(f"kafka://{brokers}"), "shop-job") as committer:
    stream.option("checkpointLocation", "checkpoint").start().awaitTermination()
print("committed:", committer.state.failing is None)
