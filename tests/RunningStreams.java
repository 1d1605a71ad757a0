import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.ForeachAction;

/**
 * Reads a topic with Kafka Streams.
 *
 * Arguments: bootstrap servers, application id (which is the group), topic, a directory for the state, and settings as
 * NAME=VALUE.
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
        builder.stream(arguments[2], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .foreach(new ForeachAction() {
                public void apply(Object key, Object value) {
                }
            });
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.start();
        Thread.sleep(Long.MAX_VALUE);
    }
}
