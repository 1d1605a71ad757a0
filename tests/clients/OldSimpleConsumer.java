import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import kafka.api.FetchRequestBuilder;
import kafka.api.GroupCoordinatorRequest;
import kafka.api.GroupCoordinatorResponse;
import kafka.api.PartitionOffsetRequestInfo;
import kafka.cluster.BrokerEndPoint;
import kafka.common.OffsetAndMetadata;
import kafka.common.OffsetMetadata;
import kafka.common.OffsetMetadataAndError;
import kafka.common.TopicAndPartition;
import kafka.javaapi.FetchResponse;
import kafka.javaapi.OffsetCommitRequest;
import kafka.javaapi.OffsetFetchRequest;
import kafka.javaapi.OffsetRequest;
import kafka.javaapi.OffsetResponse;
import kafka.javaapi.consumer.SimpleConsumer;
import kafka.message.MessageAndOffset;

/**
 * Executes requests with Kafka 0.10.2's SimpleConsumer, one per line; prints the results, then a line with a dot.
 *
 * Arguments: host and port of the broker. Requests, with tabs between the words, and their results:
 * fetch SIZE (TOPIC PARTITION OFFSET)...   "P topic partition error highWatermark", then "M offset timestamp key value";
 *                                          "X error" if it cannot decode the broker's response
 * before TOPIC PARTITION TIME MAX          "O error offset..."
 * coordinator GROUP                        "C error host port"
 * commit GROUP TOPIC PARTITION OFFSET METADATA   "E error"
 * committed GROUP TOPIC PARTITION          "F error offset metadata"
 */
public class OldSimpleConsumer {
    private static final String CLIENT = "old-simple";
    private static final short TO_KAFKA = 1;
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out));

    public static void main(String[] arguments) throws Exception {
        String host = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        SimpleConsumer consumer = new SimpleConsumer(host, port, 20000, 65536, CLIENT);
        kafka.consumer.SimpleConsumer scala = new kafka.consumer.SimpleConsumer(host, port, 20000, 65536, CLIENT);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            if (words[0].equals("fetch")) {
                try {
                    fetch(consumer, words);
                } catch (IllegalArgumentException unreadable) {
                    OUT.println("X\t" + unreadable.getMessage());
                }
            } else if (words[0].equals("before")) {
                before(consumer, words);
            } else if (words[0].equals("coordinator")) {
                coordinator(scala, words);
            } else if (words[0].equals("commit")) {
                commit(consumer, words);
            } else if (words[0].equals("committed")) {
                committed(consumer, words);
            }
            OUT.println(".");
            OUT.flush();
        }
        consumer.close();
        scala.close();
    }

    private static void fetch(SimpleConsumer consumer, String[] words) throws Exception {
        FetchRequestBuilder builder = new FetchRequestBuilder().clientId(CLIENT);
        int size = Integer.parseInt(words[1]);
        for (int at = 2; at < words.length; at += 3) {
            builder.addFetch(words[at], Integer.parseInt(words[at + 1]), Long.parseLong(words[at + 2]), size);
        }
        FetchResponse got = consumer.fetch(builder.build());
        for (int at = 2; at < words.length; at += 3) {
            String topic = words[at];
            int partition = Integer.parseInt(words[at + 1]);
            short error = got.errorCode(topic, partition);
            OUT.println("P\t" + topic + "\t" + partition + "\t" + error + "\t" + got.highWatermark(topic, partition));
            if (error == 0) {
                Iterator messages = got.messageSet(topic, partition).iterator();
                while (messages.hasNext()) {
                    MessageAndOffset message = (MessageAndOffset) messages.next();
                    OUT.println("M\t" + message.offset() + "\t" + message.message().timestamp()
                        + "\t" + hex(message.message().key()) + "\t" + hex(message.message().payload()));
                }
            }
        }
    }

    private static void before(SimpleConsumer consumer, String[] words) {
        int partition = Integer.parseInt(words[2]);
        Map requests = new HashMap();
        requests.put(
            new TopicAndPartition(words[1], partition),
            new PartitionOffsetRequestInfo(Long.parseLong(words[3]), Integer.parseInt(words[4])));
        OffsetResponse got = consumer.getOffsetsBefore(new OffsetRequest(requests, (short) 0, CLIENT));
        StringBuilder line = new StringBuilder("O\t" + got.errorCode(words[1], partition));
        long[] offsets = got.offsets(words[1], partition);
        for (int at = 0; at < offsets.length; at++) {
            line.append("\t").append(offsets[at]);
        }
        OUT.println(line);
    }

    private static void coordinator(kafka.consumer.SimpleConsumer consumer, String[] words) {
        GroupCoordinatorResponse got = consumer.send(new GroupCoordinatorRequest(words[1], (short) 0, 0, CLIENT));
        if (got.errorCode() == 0) {
            BrokerEndPoint broker = (BrokerEndPoint) got.coordinatorOpt().get();
            OUT.println("C\t0\t" + broker.host() + "\t" + broker.port());
        } else {
            OUT.println("C\t" + got.errorCode() + "\t\t-1");
        }
    }

    private static void commit(SimpleConsumer consumer, String[] words) {
        TopicAndPartition partition = new TopicAndPartition(words[2], Integer.parseInt(words[3]));
        Map offsets = new HashMap();
        offsets.put(
            partition, new OffsetAndMetadata(new OffsetMetadata(Long.parseLong(words[4]), words[5]), -1L, -1L));
        OffsetCommitRequest request = new OffsetCommitRequest(words[1], offsets, 0, CLIENT, TO_KAFKA);
        OUT.println("E\t" + consumer.commitOffsets(request).errors().get(partition));
    }

    private static void committed(SimpleConsumer consumer, String[] words) {
        TopicAndPartition partition = new TopicAndPartition(words[2], Integer.parseInt(words[3]));
        List partitions = new ArrayList();
        partitions.add(partition);
        OffsetFetchRequest request = new OffsetFetchRequest(words[1], partitions, TO_KAFKA, 0, CLIENT);
        OffsetMetadataAndError got = (OffsetMetadataAndError) consumer.fetchOffsets(request).offsets().get(partition);
        OUT.println("F\t" + got.error() + "\t" + got.offset() + "\t" + got.metadata());
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return "\\N";
        }
        StringBuilder text = new StringBuilder();
        ByteBuffer bytes = (ByteBuffer) buffer.duplicate();
        while (bytes.hasRemaining()) {
            int octet = bytes.get() & 0xff;
            text.append(Character.forDigit(octet >> 4, 16)).append(Character.forDigit(octet & 15, 16));
        }
        return text.toString();
    }
}
