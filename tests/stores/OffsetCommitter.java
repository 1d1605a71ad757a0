import java.io.File;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * Commits offsets one after the other, repeats each commit until it is acknowledged, and prints its partition and offset.
 *
 * Most commits raise the offset, and a few lower it a little. Arguments: bootstrap servers, group, topic, number of
 * partitions, and a file; the program ends when the file exists.
 */
public class OffsetCommitter {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("bootstrap.servers", arguments[0]);
        properties.setProperty("group.id", arguments[1]);
        properties.setProperty("enable.auto.commit", "false");
        properties.setProperty("default.api.timeout.ms", "3000");
        properties.setProperty("request.timeout.ms", "2000");
        properties.setProperty("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        properties.setProperty("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        KafkaConsumer consumer = new KafkaConsumer(properties);
        int partitions = Integer.parseInt(arguments[3]);
        File enough = new File(arguments[4]);
        for (int number = 1; !enough.exists(); number++) {
            int partition = number % partitions;
            int offset = number % 37 == 0 ? number / 2 : number;
            Map offsets = new HashMap();
            offsets.put(new TopicPartition(arguments[2], partition), new OffsetAndMetadata(offset));
            while (!committed(consumer, offsets)) {
            }
            System.out.println(partition + "\t" + offset);
        }
        consumer.close();
    }

    private static boolean committed(KafkaConsumer consumer, Map offsets) {
        try {
            consumer.commitSync(offsets);
            return true;
        } catch (RuntimeException failed) {
            System.err.println(failed);
            return false;
        }
    }
}
