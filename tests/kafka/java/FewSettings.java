import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** Refuses the settings of customers' new topics that Amazon MSK Serverless refuses. Brokers create Kafka's own topics. */
public class FewSettings implements CreateTopicPolicy {
    private static final Set<String> OWN = Set.of("__consumer_offsets", "__transaction_state", "__share_group_state");
    private static final Set<String> ALLOWED = Set.of(
        "cleanup.policy", "compression.type", "max.message.bytes", "message.timestamp.difference.max.ms",
        "message.timestamp.type", "retention.bytes", "retention.ms");

    @Override
    public void configure(Map<String, ?> configs) {}

    @Override
    public void validate(RequestMetadata request) {
        for (String name : request.configs().keySet()) {
            if (!ALLOWED.contains(name) && !OWN.contains(request.topic())) {
                throw new PolicyViolationException("can't set topic configuration " + name);
            }
        }
    }

    @Override
    public void close() {}
}
