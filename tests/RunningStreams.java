import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.ForeachAction;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KeyValueMapper;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * Reads a topic with Kafka Streams, until its thread is interrupted.
 *
 * Arguments: bootstrap servers, application id (which is the group), topic, a directory for the state, and settings as
 * NAME=VALUE. The setting "count.by" is the name of a repartition topic and of a store with its changelog topic.
 */
public class RunningStreams {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("bootstrap.servers", arguments[0]);
        properties.setProperty("application.id", arguments[1]);
        properties.setProperty("state.dir", arguments[3]);
        properties.setProperty("auto.offset.reset", "earliest");
        properties.setProperty("commit.interval.ms", "500");
        for (int i = 4; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            properties.setProperty(setting[0], setting[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        KStream stream = builder.stream(arguments[2], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()));
        stream.foreach(new ForeachAction() {
            public void apply(Object key, Object value) {
            }
        });
        String name = properties.getProperty("count.by");
        if (name != null) {
            KeyValueMapper value = new KeyValueMapper() {
                public Object apply(Object key, Object value) {
                    return value;
                }
            };
            stream.groupBy(value, Grouped.with(name, Serdes.ByteArray(), Serdes.ByteArray()))
                .count(Materialized.as(Stores.inMemoryKeyValueStore(name)));
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.start();
        try {
            Thread.sleep(Long.MAX_VALUE);
        } finally {
            streams.close();
        }
    }
}
