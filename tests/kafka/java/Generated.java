import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * What Kafka's own generated classes (3.9 and later) make of records of __consumer_offsets, in JSON.
 *
 * Each line of the input is "decode <key> <value>" in hex ("-" = no value), or "encode <class> <version> <JSON>" for the
 * bytes of one key or value. Each line of the output answers one of the input.
 */
class Generated {
    private static final String HERE = "org.apache.kafka.coordinator.group.";
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        Object serde = serde();
        Method deserialize = serde.getClass().getMethod("deserialize", ByteBuffer.class, ByteBuffer.class);
        deserialize.setAccessible(true);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 4);
            try {
                System.out.println(words[0].equals("encode") ? encode(words) : decode(serde, deserialize, words));
            } catch (InvocationTargetException refused) {
                System.out.println(JSON.createObjectNode().put("refused", String.valueOf(refused.getCause())));
            }
        }
    }

    private static Object serde() throws Exception {
        try {
            return Class.forName(HERE + "GroupCoordinatorRecordSerde").getConstructor().newInstance();
        } catch (ClassNotFoundException older) {
            return Class.forName(HERE + "CoordinatorRecordSerde").getConstructor().newInstance();
        }
    }

    private static JsonNode decode(Object serde, Method deserialize, String[] words) throws Exception {
        ByteBuffer value = words[2].equals("-") ? null : bytes(words[2]);
        Object record = deserialize.invoke(serde, bytes(words[1]), value);
        Object key = record.getClass().getMethod("key").invoke(record);
        short keyVersion = 0;
        if (key instanceof ApiMessageAndVersion older) {
            key = older.message();
            keyVersion = older.version();
        }
        var answer = JSON.createObjectNode().put("class", key.getClass().getSimpleName());
        answer.set("key", write((ApiMessage) key, keyVersion));
        var told = (ApiMessageAndVersion) record.getClass().getMethod("value").invoke(record);
        answer.set("value", told == null ? null : write(told.message(), told.version()));
        return answer;
    }

    private static JsonNode encode(String[] words) throws Exception {
        Class<?> kind = Class.forName(HERE + "generated." + words[1]);
        short version = Short.parseShort(words[2]);
        Method read = Class.forName(kind.getName() + "JsonConverter").getMethod("read", JsonNode.class, short.class);
        ApiMessage message = (ApiMessage) read.invoke(null, JSON.readTree(words[3]), version);
        // What stands before a key is its type, and before a value its version.
        byte[] written = MessageUtil.toVersionPrefixedBytes(version, message);
        if (words[1].endsWith("Key")) {
            ByteBuffer.wrap(written).putShort(message.apiKey());
        }
        return JSON.createObjectNode().put("bytes", HexFormat.of().formatHex(written));
    }

    private static JsonNode write(ApiMessage message, short version) throws Exception {
        Class<?> converter = Class.forName(message.getClass().getName() + "JsonConverter");
        return (JsonNode) converter.getMethod("write", message.getClass(), short.class).invoke(null, message, version);
    }

    private static ByteBuffer bytes(String hex) {
        return ByteBuffer.wrap(HexFormat.of().parseHex(hex));
    }
}
