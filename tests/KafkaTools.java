import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs Kafka's tools and other programs in one JVM, as their starts take longest.
 *
 * Each line of the input is "run", "start" (in a thread of its own) or "stop" (interrupts that thread), the name of a
 * class, and its arguments, separated by tabs. After each line the program prints the line "done".
 */
public class KafkaTools {
    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure(new Exit.Procedure() {
            public void execute(int status, String message) {
                throw new RuntimeException("exit " + status);
            }
        });
        java.util.Map threads = new java.util.HashMap();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            final String[] words = line.split("\t");
            String key = line.substring(line.indexOf('\t'));
            Thread thread = (Thread) threads.get(key);
            if (words[0].equals("stop")) {
                thread.interrupt();
            } else {
                thread = new Thread(new Runnable() {
                    public void run() {
                        runMain(words);
                    }
                });
                thread.setDaemon(true);
                threads.put(key, thread);
                thread.start();
            }
            if (!words[0].equals("start")) {
                thread.join();
            }
            System.out.println("done");
        }
    }

    private static void runMain(String[] words) {
        try {
            Method main = Class.forName(words[1]).getMethod("main", new Class[] {String[].class});
            main.invoke(null, new Object[] {java.util.Arrays.copyOfRange(words, 2, words.length)});
        } catch (Throwable error) {
            error.printStackTrace();
        }
    }
}
