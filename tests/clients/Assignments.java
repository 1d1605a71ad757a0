import java.io.BufferedReader;
import java.io.InputStreamReader;
import kafka.common.TopicAndPartition;
import kafka.consumer.AssignmentContext;
import kafka.consumer.ConsumerThreadId;
import kafka.consumer.PartitionAssignor;
import kafka.consumer.RangeAssignor;
import kafka.consumer.RoundRobinAssignor;
import kafka.utils.Pool;
import kafka.utils.ZkUtils;
import scala.Tuple2;

/**
 * Prints the assignments that Kafka's assignors compute from the groups and topics in ZooKeeper.
 *
 * Argument: ZooKeeper's address. Reads one query per line: chroot, strategy, group, querying member. Prints one line for
 * each assigned partition: number of the query, topic, partition, thread; or "refused", -1 and the error.
 */
public class Assignments {
    private static ZkUtils zookeeper = null;
    private static String chroot = null;

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        int number = 0;
        String line = input.readLine();
        while (line != null) {
            String[] query = line.split("\t");
            connect(arguments[0], query[0]);
            answer(number, query);
            number = number + 1;
            line = input.readLine();
        }
        System.exit(0);
    }

    private static void connect(String address, String newChroot) {
        if (newChroot.equals(chroot)) {
            return;
        }
        if (zookeeper != null) {
            zookeeper.close();
        }
        chroot = newChroot;
        zookeeper = ZkUtils.apply(address + chroot, 30000, 30000, false);
    }

    private static void answer(int number, String[] query) {
        PartitionAssignor assignor = new RoundRobinAssignor();
        if (query[1].equals("range")) {
            assignor = new RangeAssignor();
        }
        try {
            print(number, assignor.assign(new AssignmentContext(query[2], query[3], true, zookeeper)));
        } catch (Throwable error) {
            System.out.println(number + "\trefused\t-1\t" + error.toString());
        }
    }

    private static void print(int number, Pool assignment) {
        scala.collection.Iterator members = assignment.iterator();
        while (members.hasNext()) {
            Tuple2 member = (Tuple2) members.next();
            scala.collection.Iterator partitions = ((scala.collection.Map) member._2()).iterator();
            while (partitions.hasNext()) {
                Tuple2 owned = (Tuple2) partitions.next();
                TopicAndPartition partition = (TopicAndPartition) owned._1();
                ConsumerThreadId thread = (ConsumerThreadId) owned._2();
                System.out.println(
                    number + "\t" + partition.topic() + "\t" + partition.partition() + "\t" + thread.toString());
            }
        }
    }
}
