import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Kafka's authorizer, but as of a service that shows neither its disks nor its internal topics to its customers, whatever
 * their ACLs are: DescribeLogDirs and __consumer_offsets are denied to every user.
 */
public class ServiceAuthorizer extends StandardAuthorizer {
    @Override
    public List<AuthorizationResult> authorize(AuthorizableRequestContext context, List<Action> actions) {
        List<AuthorizationResult> results = super.authorize(context, actions);
        if (context.principal().equals(KafkaPrincipal.ANONYMOUS)) {
            return results;
        }
        boolean disks = context.requestType() == ApiKeys.DESCRIBE_LOG_DIRS.id;
        return IntStream.range(0, actions.size())
            .mapToObj(at -> disks || actions.get(at).resourcePattern().name().equals("__consumer_offsets")
                ? AuthorizationResult.DENIED : results.get(at))
            .collect(Collectors.toList());
    }
}
