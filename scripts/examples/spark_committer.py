"""A Spark job whose committed offsets every lag tool shows."""

import os

from offsetmgr.spark import OffsetCommitter, open_store, session

brokers = os.environ["OFFSETMGR_BOOTSTRAP_SERVER"]
spark = session("shop-job", master="local[1]")
committer = OffsetCommitter(open_store(f"kafka://{brokers}"), "shop-job", spark=spark)
spark.streams.addListener(committer)
orders = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", "orders")
query = orders.option("startingOffsets", "earliest").load().writeStream.format("noop").trigger(availableNow=True)
query.option("checkpointLocation", "checkpoint").start().awaitTermination()
print("committed:", committer.close())
