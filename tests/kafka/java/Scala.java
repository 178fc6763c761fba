import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import kafka.coordinator.group.BaseKey;
import kafka.coordinator.group.GroupMetadataKey;
import kafka.coordinator.group.GroupMetadataManager;
import kafka.coordinator.group.GroupTopicPartition;
import kafka.coordinator.group.MemberMetadata;
import kafka.coordinator.group.OffsetKey;
import org.apache.kafka.common.utils.Time;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What the coordinator that is written in Scala (Kafka 3.9 and before) makes of records of __consumer_offsets.
 *
 * Each line of the input is "<key> <value>" in hex ("-" = no value); the answer is a line of words, texts in hex.
 */
class Scala {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            ByteBuffer value = words[1].equals("-") ? null : bytes(words[1]);
            BaseKey key = GroupMetadataManager.readMessageKey(bytes(words[0]));
            if (key instanceof OffsetKey offset) {
                System.out.println(commit(offset.key(), value));
            } else if (key instanceof GroupMetadataKey group) {
                System.out.println(group(group.key(), value));
            } else {
                System.out.println("unknown");
            }
        }
    }

    private static String commit(GroupTopicPartition place, ByteBuffer value) {
        var partition = place.topicPartition();
        String where = line("commit", hex(place.group()), hex(partition.topic()), partition.partition());
        if (value == null) {
            return line(where, "gone");
        }
        var told = GroupMetadataManager.readOffsetMessageValue(value);
        return line(
            where, told.offset(), told.leaderEpoch().orElse(-1), hex(told.metadata()), told.commitTimestamp(),
            told.expireTimestamp().isDefined() ? told.expireTimestamp().get() : "-");
    }

    private static String group(String id, ByteBuffer value) {
        if (value == null) {
            return line("classic", hex(id), "gone");
        }
        var told = GroupMetadataManager.readGroupMessageValue(id, value, Time.SYSTEM);
        String group = line(
            "classic", hex(id), hex(told.protocolType().isDefined() ? told.protocolType().get() : ""),
            told.generationId(), told.size(),
            told.currentStateTimestamp().isDefined() ? told.currentStateTimestamp().get() : "-");
        for (MemberMetadata member : CollectionConverters.asJava(told.allMemberMetadata())) {
            var instance = member.groupInstanceId();
            group = line(
                group, hex(member.clientId()), hex(member.clientHost()),
                instance.isDefined() && instance.get() != null ? hex(instance.get()) : "-");
        }
        return group;
    }

    private static String line(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.isEmpty() ? "" : " ").append(word);
        }
        return line.toString();
    }

    private static String hex(String text) {
        return "x" + HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8));
    }

    private static ByteBuffer bytes(String hex) {
        return ByteBuffer.wrap(HexFormat.of().parseHex(hex));
    }
}
