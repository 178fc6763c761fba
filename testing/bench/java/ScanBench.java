import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collection;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;

/**
 * Kafka's own AdminClient. Arguments: bootstrap servers, steady or full, prefix of the group ids that match, how many
 * groups to fetch the offsets of at a time.
 */
public final class ScanBench {
    private static final int TIMEOUT_MS = 300_000;

    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(AdminClientConfig.REQUEST_TIMEOUT_MS_CONFIG, TIMEOUT_MS);
        config.put(AdminClientConfig.DEFAULT_API_TIMEOUT_MS_CONFIG, TIMEOUT_MS);
        boolean steady = args[1].equals("steady");
        Pattern pattern = Pattern.compile(Pattern.quote(args[2]) + ".*", Pattern.DOTALL);
        try (Admin admin = Admin.create(config);
                BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
            admin.describeCluster().nodes().get();
            System.out.println("{\"ready\": true}");
            while (input.readLine() != null) {
                long started = System.nanoTime();
                String counts = steady ? steady(admin, pattern) : full(admin, Integer.parseInt(args[3]));
                double seconds = (System.nanoTime() - started) / 1e9;
                System.out.printf(Locale.ROOT, "{\"seconds\": %.6f, %s}%n", seconds, counts);
            }
        }
    }

    /** As the operator does it: filter at the broker, match by name, and fetch the offsets of what matches only. */
    private static String steady(Admin admin, Pattern pattern) throws Exception {
        admin.describeCluster().nodes().get();
        ListGroupsOptions options = new ListGroupsOptions()
                .inGroupStates(Set.of(GroupState.EMPTY))
                .withTypes(Set.of(GroupType.CLASSIC, GroupType.CONSUMER));
        Collection<GroupListing> listed = admin.listGroups(options).all().get();
        Map<String, ListConsumerGroupOffsetsSpec> matching = new HashMap<>();
        for (GroupListing group : listed) {
            if (pattern.matcher(group.groupId()).matches()) {
                matching.put(group.groupId(), new ListConsumerGroupOffsetsSpec());
            }
        }
        Counts counts = new Counts(listed.size());
        counts.fetch(admin, matching);
        return counts.toString();
    }

    /** Everything, a batch at a time: of each batch only the counts are kept. */
    private static String full(Admin admin, int batch) throws Exception {
        admin.describeCluster().nodes().get();
        Collection<GroupListing> listed = admin.listGroups().all().get();
        Counts counts = new Counts(listed.size());
        Map<String, ListConsumerGroupOffsetsSpec> specs = new HashMap<>();
        for (GroupListing group : listed) {
            specs.put(group.groupId(), new ListConsumerGroupOffsetsSpec());
            if (specs.size() == batch) {
                counts.fetch(admin, specs);
                specs = new HashMap<>();
            }
        }
        if (!specs.isEmpty()) {
            counts.fetch(admin, specs);
        }
        return counts.toString();
    }

    private static final class Counts {
        private final int listed;
        private int groups;
        private int partitions;

        Counts(int listed) {
            this.listed = listed;
        }

        void fetch(Admin admin, Map<String, ListConsumerGroupOffsetsSpec> specs) throws Exception {
            for (Map<?, ?> offsets : admin.listConsumerGroupOffsets(specs).all().get().values()) {
                groups++;
                partitions += offsets.size();
            }
        }

        @Override
        public String toString() {
            return "\"listed\": " + listed + ", \"groups\": " + groups + ", \"partitions\": " + partitions;
        }
    }
}
