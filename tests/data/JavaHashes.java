import org.apache.kafka.common.utils.Utils;

/**
 * Prints groups as UTF-16 code units in hex, their hashCode, and Kafka's partition of 50 and of 7.
 *
 * The vectors of test_partitioner.py: java -cp kafka-clients-3.9.1.jar:slf4j-api-1.7.36.jar JavaHashes.java > java_hashes.txt
 */
public class JavaHashes {
    public static void main(String[] args) {
        String[] groups = {
            "", "a", "g", "group", "console-consumer-12345", "my-group_with.everything-1",
            "\u00e9t\u00e9", "\u65e5\u672c\u8a9e", "\ud83d\ude00", "group-\ud83d\ude80-\u00fc", "\uffff", "\u0000", "\u0000a",
            "\ud800", "a\udc00b",
            "polygenelubricants", "GydZG_", "DESIGNING WORKHOUSES", // these hash to Integer.MIN_VALUE
            "xy".repeat(16383), "\ud83d\ude00".repeat(1000),
        };
        for (String group : groups) print(group);
        for (int i = 0; i < 40; i++) print("group-" + i * 7919);
        java.util.Random random = new java.util.Random(42);
        for (int i = 0; i < 60; i++) {
            StringBuilder text = new StringBuilder();
            for (int n = 1 + random.nextInt(40); n > 0; n--) text.append((char) random.nextInt(0x10000));
            print(text.toString());
        }
    }

    private static void print(String group) {
        int hash = group.hashCode();
        int positive = Utils.abs(hash); // what the group coordinator calls
        StringBuilder units = new StringBuilder();
        boolean repeated = group.length() > 100;
        for (char unit : (repeated ? group.substring(0, 2) : group).toCharArray())
            units.append(String.format("%04x", (int) unit));
        if (repeated) units.append("*").append(group.length() / 2); // two units, so many times
        System.out.println(units + " " + hash + " " + positive % 50 + " " + positive % 7);
    }
}
