import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;

/**
 * Consumes a topic and prints each record ("R partition offset milliseconds"), each assigned partition
 * ("A partition 0 milliseconds") and each error ("E message").
 *
 * Arguments: topic, how to commit (auto, sync, explicit, or transaction: through a transactional producer, with the
 * metadata of the group), milliseconds of work for each batch, and properties of the consumer as NAME=VALUE. With the
 * property leave=true it commits its last batch and leaves the group at SIGTERM.
 */
public class RunningConsumer implements ConsumerRebalanceListener {
    private static volatile boolean stopped = false;

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        properties.setProperty("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        properties.setProperty("auto.offset.reset", "earliest");
        properties.setProperty("auto.commit.interval.ms", "500");
        properties.setProperty("enable.auto.commit", String.valueOf(arguments[1].equals("auto")));
        for (int number = 3; number < arguments.length; number++) {
            int at = arguments[number].indexOf('=');
            properties.setProperty(arguments[number].substring(0, at), arguments[number].substring(at + 1));
        }
        if ("true".equals(properties.remove("leave"))) {
            stopAtExit(Thread.currentThread());
        }
        KafkaConsumer consumer = new KafkaConsumer(properties);
        consumer.subscribe(java.util.Collections.singletonList(arguments[0]), new RunningConsumer());
        KafkaProducer producer = arguments[1].equals("transaction") ? producer(properties) : null;
        while (!stopped) {
            try {
                step(consumer, producer, arguments[1], Long.parseLong(arguments[2]));
            } catch (RuntimeException failed) {
                System.out.println("E " + failed.toString().replace('\n', ' '));
                if (producer != null) {
                    goBack(consumer, producer);
                }
            }
        }
        consumer.close();
    }

    private static void stopAtExit(final Thread main) {
        Runtime.getRuntime().addShutdownHook(new Thread() {
            public void run() {
                stopped = true;
                try {
                    main.join(60000);
                } catch (InterruptedException impossible) {
                    return;
                }
            }
        });
    }

    private static KafkaProducer producer(Properties consumer) {
        Properties properties = new Properties();
        properties.setProperty("bootstrap.servers", consumer.getProperty("bootstrap.servers"));
        properties.setProperty("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        properties.setProperty("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        properties.setProperty("transactional.id",
            consumer.getProperty("group.id") + "-" + consumer.getProperty("client.id"));
        KafkaProducer producer = new KafkaProducer(properties);
        producer.initTransactions();
        return producer;
    }

    /** Aborts the transaction and moves the positions back to the committed offsets, because the records of the batch were not processed. */
    private static void goBack(KafkaConsumer consumer, KafkaProducer producer) {
        try {
            producer.abortTransaction();
        } catch (RuntimeException none) {
            // no transaction had begun
        }
        try {
            Map committed = consumer.committed(consumer.assignment());
            Iterator all = consumer.assignment().iterator();
            while (all.hasNext()) {
                TopicPartition one = (TopicPartition) all.next();
                OffsetAndMetadata offset = (OffsetAndMetadata) committed.get(one);
                consumer.seek(one, offset == null ? 0 : offset.offset());
            }
        } catch (RuntimeException failed) {
            System.out.println("E " + failed.toString().replace('\n', ' '));
        }
    }

    private static void step(KafkaConsumer consumer, KafkaProducer producer, String commit, long workMs) throws Exception {
        ConsumerRecords records = consumer.poll(Duration.ofMillis(100));
        Map offsets = new HashMap();
        Iterator all = records.iterator();
        while (all.hasNext()) {
            ConsumerRecord record = (ConsumerRecord) all.next();
            System.out.println("R " + record.partition() + " " + record.offset() + " " + System.currentTimeMillis());
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            offsets.put(partition, new OffsetAndMetadata(record.offset() + 1));
        }
        if (offsets.isEmpty()) {
            return;
        }
        if (workMs > 0) {
            Thread.sleep(workMs);
        }
        if (commit.equals("explicit")) {
            consumer.commitSync(offsets);
        } else if (commit.equals("sync")) {
            consumer.commitSync();
        } else if (commit.equals("transaction")) {
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
        }
    }

    public void onPartitionsAssigned(Collection partitions) {
        Iterator all = partitions.iterator();
        while (all.hasNext()) {
            TopicPartition one = (TopicPartition) all.next();
            System.out.println("A " + one.partition() + " 0 " + System.currentTimeMillis());
        }
    }

    public void onPartitionsRevoked(Collection partitions) {
    }
}
