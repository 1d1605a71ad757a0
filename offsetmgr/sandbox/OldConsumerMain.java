import java.io.FileInputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.locks.ReentrantLock;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.Blacklist;
import kafka.consumer.ConsumerTimeoutException;
import kafka.consumer.TopicFilter;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * Runs the old high-level consumer and prints each consumed message in one line.
 *
 * The library commits automatically. The program prints a message before the message counts as consumed, so a commit
 * never includes a message that is not printed. No commit of a rebalance or of a clean shutdown happens between the two
 * steps. Therefore this program itself never loses or repeats a message. The library of 0.8.2 does not report
 * rebalances, so with that release the group can repeat the message that the program prints when a rebalance begins.
 *
 * Arguments: the consumer's properties file; the topics, joined by commas, or white_list:REGEX, or black_list:REGEX;
 * the number of streams (for each topic, or for all topics of a list).
 */
public class OldConsumerMain {
    private final ConsumerConnector connector;
    private final OutputStream out = new FileOutputStream(FileDescriptor.out);
    private final List locks = Collections.synchronizedList(new ArrayList());
    private volatile boolean stopping = false;

    private OldConsumerMain(Properties properties) {
        // A wait for a message blocks the stream's lock, so the wait must be short.
        properties.setProperty("consumer.timeout.ms", "50");
        connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties));
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        FileInputStream file = new FileInputStream(arguments[0]);
        try {
            properties.load(file);
        } finally {
            file.close();
        }
        new OldConsumerMain(properties).run(arguments[1], Integer.parseInt(arguments[2]));
    }

    private void run(String topics, int count) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(new Runnable() {
            public void run() {
                lockAll();
                stopping = true;
                unlockAll();
                connector.shutdown();
            }
        }));
        commitBeforeRebalances();
        // All locks must exist before the first rebalance.
        boolean filtered = topics.startsWith("white_list:") || topics.startsWith("black_list:");
        int all = filtered ? count : count * topics.split(",").length;
        for (int i = 0; i < all; i++) {
            // The lock is fair, because otherwise a busy stream would block a rebalance without end.
            locks.add(new ReentrantLock(true));
        }
        Iterator each = (filtered ? filteredStreams(topics, count) : namedStreams(topics, count)).iterator();
        for (int i = 0; i < all; i++) {
            // Some releases have several methods of this name that differ only in the type of the result.
            final ConsumerIterator messages = (ConsumerIterator) ((Iterable) each.next()).iterator();
            final ReentrantLock lock = (ReentrantLock) locks.get(i);
            new Thread(new Runnable() {
                public void run() {
                    while (consumeOne(messages, lock)) {
                    }
                }
            }, "stream-" + i).start();
        }
    }

    private void commitBeforeRebalances() throws Exception {
        Class listener;
        try {
            listener = Class.forName("kafka.javaapi.consumer.ConsumerRebalanceListener");
        } catch (ClassNotFoundException of_0_8_2) {
            return;
        }
        Object committing = Proxy.newProxyInstance(listener.getClassLoader(), new Class[] {listener},
            new InvocationHandler() {
                public Object invoke(Object proxy, Method method, Object[] arguments) {
                    if (method.getName().equals("beforeReleasingPartitions")) {
                        // The library has already stopped fetching and has committed, but this program may have
                        // received a message since.
                        lockAll();
                        try {
                            connector.commitOffsets();
                        } finally {
                            unlockAll();
                        }
                    }
                    return null;
                }
            });
        Method setter = ConsumerConnector.class.getMethod("setConsumerRebalanceListener", new Class[] {listener});
        setter.invoke(connector, new Object[] {committing});
    }

    private List namedStreams(String topics, int count) {
        Map wanted = new HashMap();
        String[] names = topics.split(",");
        for (int i = 0; i < names.length; i++) {
            wanted.put(names[i], Integer.valueOf(count));
        }
        Map streams = connector.createMessageStreams(wanted);
        List found = new ArrayList();
        for (int i = 0; i < names.length; i++) {
            found.addAll((List) streams.get(names[i]));
        }
        return found;
    }

    private List filteredStreams(String topics, int count) {
        String regex = topics.substring("white_list:".length());
        TopicFilter filter;
        if (topics.startsWith("white_list:")) {
            filter = new Whitelist(regex);
        } else {
            filter = new Blacklist(regex);
        }
        return connector.createMessageStreamsByFilter(filter, count);
    }

    private boolean consumeOne(ConsumerIterator messages, ReentrantLock lock) {
        lock.lock();
        try {
            if (stopping || !messages.hasNext()) {
                return false;
            }
            print((MessageAndMetadata) messages.peek());
            ((Iterator) messages).next();
        } catch (ConsumerTimeoutException nothingYet) {
            return true;
        } catch (Throwable broken) {
            broken.printStackTrace();
            Runtime.getRuntime().halt(3);
        } finally {
            lock.unlock();
        }
        return true;
    }

    private void lockAll() {
        for (int i = 0; i < locks.size(); i++) {
            ((ReentrantLock) locks.get(i)).lock();
        }
    }

    private void unlockAll() {
        for (int i = 0; i < locks.size(); i++) {
            ((ReentrantLock) locks.get(i)).unlock();
        }
    }

    private void print(MessageAndMetadata message) throws IOException {
        String line = message.partition() + "\t" + message.offset() + "\t" + escaped((byte[]) message.key()) + "\t"
            + escaped((byte[]) message.message()) + "\t" + message.topic() + "\t" + System.currentTimeMillis() + "\n";
        // Each line is one write, so a SIGKILL leaves only whole lines.
        out.write(line.getBytes("ISO-8859-1"));
    }

    /** Returns printable ASCII unchanged, other bytes as \xHH, and null as \N. */
    private static String escaped(byte[] bytes) {
        if (bytes == null) {
            return "\\N";
        }
        StringBuilder text = new StringBuilder(bytes.length);
        for (int i = 0; i < bytes.length; i++) {
            int b = bytes[i] & 0xff;
            if (b >= 0x20 && b < 0x7f && b != '\\') {
                text.append((char) b);
            } else {
                text.append("\\x").append(Character.forDigit(b >> 4, 16)).append(Character.forDigit(b & 15, 16));
            }
        }
        return text.toString();
    }
}
