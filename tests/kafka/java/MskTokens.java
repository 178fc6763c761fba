import java.net.URI;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerExtensionsValidatorCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/**
 * A broker's check of SASL/OAUTHBEARER as Amazon MSK does it: the token is a URL for kafka-cluster:Connect that was
 * signed with the secret key of its access key, by AWS Signature Version 4. The options of the login module are access
 * keys with their secret keys. The principal is the access key.
 */
public class MskTokens implements AuthenticateCallbackHandler {
    private Map<String, ?> keys = Map.of();

    @Override
    public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
        keys = entries.get(0).getOptions();
    }

    @Override
    public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (callback instanceof OAuthBearerValidatorCallback validator) {
                try {
                    validator.token(verified(validator.tokenValue()));
                } catch (Exception error) {
                    validator.error("invalid_token: " + error.getMessage(), null, null);
                }
            } else if (callback instanceof OAuthBearerTokenCallback || callback instanceof OAuthBearerExtensionsValidatorCallback) {
                // The broker's own login, which is never used; and extensions, which MSK has none of.
                continue;
            } else {
                throw new UnsupportedCallbackException(callback);
            }
        }
    }

    @Override
    public void close() {}

    private OAuthBearerToken verified(String value) throws Exception {
        URI url = URI.create(new String(Base64.getUrlDecoder().decode(value), StandardCharsets.US_ASCII));
        TreeMap<String, String> query = new TreeMap<>();
        for (String pair : url.getRawQuery().split("&")) {
            String[] parts = pair.split("=", 2);
            query.put(decoded(parts[0]), decoded(parts[1]));
        }
        query.remove("User-Agent");
        String signature = query.remove("X-Amz-Signature");
        String[] credential = query.get("X-Amz-Credential").split("/");
        String secret = (String) keys.get(credential[0]);
        require(secret != null, "unknown access key");
        require(query.get("Action").equals("kafka-cluster:Connect"), "another action");
        require(url.getHost().equals("kafka." + credential[2] + ".amazonaws.com"), "another host");
        require(credential[3].equals("kafka-cluster"), "another service");
        ZonedDateTime signed = ZonedDateTime.parse(
            query.get("X-Amz-Date"), DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'").withZone(ZoneOffset.UTC));
        long expires = signed.toInstant().toEpochMilli() + 1000 * Long.parseLong(query.get("X-Amz-Expires"));
        require(System.currentTimeMillis() < expires, "expired");
        StringBuilder pairs = new StringBuilder();
        for (Map.Entry<String, String> each : query.entrySet()) {
            pairs.append(pairs.length() == 0 ? "" : "&").append(encoded(each.getKey())).append("=").append(encoded(each.getValue()));
        }
        String request = String.join("\n", "GET", "/", pairs, "host:" + url.getHost(), "", "host", hash(""));
        String scope = String.join("/", credential[1], credential[2], credential[3], credential[4]);
        String toSign = String.join("\n", "AWS4-HMAC-SHA256", query.get("X-Amz-Date"), scope, hash(request));
        byte[] key = ("AWS4" + secret).getBytes(StandardCharsets.UTF_8);
        for (String part : List.of(credential[1], credential[2], credential[3], credential[4], toSign)) {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            key = mac.doFinal(part.getBytes(StandardCharsets.UTF_8));
        }
        require(HexFormat.of().formatHex(key).equals(signature), "wrong signature");
        return new Token(value, credential[0], signed.toInstant().toEpochMilli(), expires);
    }

    private record Token(String value, String principalName, Long startTimeMs, long lifetimeMs) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }
    }

    private static void require(boolean right, String otherwise) {
        if (!right) {
            throw new IllegalArgumentException(otherwise);
        }
    }

    private static String hash(String text) throws Exception {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
        return HexFormat.of().formatHex(digest);
    }

    private static String decoded(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }

    private static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20").replace("*", "%2A").replace("%7E", "~");
    }
}
