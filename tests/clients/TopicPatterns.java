import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import kafka.consumer.Blacklist;
import kafka.consumer.TopicFilter;
import kafka.consumer.Whitelist;

/**
 * Prints the topics that Kafka's white and black lists select.
 *
 * Reads the topics, separated by blanks, from the first line, then one pattern per line, in Base64. Prints one line for
 * each pattern: ERROR if it cannot be compiled, else a digit for each topic (1 if the white list selects it, 2 if the
 * black list does, 0 if neither) for each of the two settings of exclude.internal.topics, true first.
 */
public class TopicPatterns {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "US-ASCII"));
        String[] topics = input.readLine().split(" ");
        String line;
        while ((line = input.readLine()) != null) {
            System.out.println(answer(new String(Base64.getDecoder().decode(line), "UTF-8"), topics));
        }
    }

    private static String answer(String pattern, String[] topics) {
        StringBuilder found = new StringBuilder();
        try {
            TopicFilter white = new Whitelist(pattern);
            TopicFilter black = new Blacklist(pattern);
            for (int exclude = 1; exclude >= 0; exclude--) {
                for (int i = 0; i < topics.length; i++) {
                    boolean chosen = white.isTopicAllowed(topics[i], exclude == 1);
                    boolean left = black.isTopicAllowed(topics[i], exclude == 1);
                    found.append(chosen && left ? '3' : chosen ? '1' : left ? '2' : '0');
                }
            }
        } catch (RuntimeException refused) {
            return "ERROR";
        } catch (StackOverflowError refused) {
            return "ERROR";
        }
        return found.toString();
    }
}
