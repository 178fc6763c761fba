import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * A Kafka Streams application (4.3) that counts the records of a topic by their keys, in a store with a changelog topic.
 *
 * Arguments: bootstrap servers, application id, group protocol, a folder of its own, topic, and how many records it counts
 * before it ends. It prints the key and the count after each of them.
 */
class Application {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("application.id", arguments[1]);
        properties.put("group.protocol", arguments[2]);
        properties.put("state.dir", arguments[3]);
        properties.put("auto.offset.reset", "earliest");
        properties.put("statestore.cache.max.bytes", "0");
        CountDownLatch left = new CountDownLatch(Integer.parseInt(arguments[5]));
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[4], Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withKeySerde(Serdes.String()))
            .toStream()
            .foreach((key, count) -> {
                System.out.println(key + " " + count);
                left.countDown();
            });
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.start();
        boolean done = left.await(180, TimeUnit.SECONDS);
        streams.close(new KafkaStreams.CloseOptions().leaveGroup(true).timeout(Duration.ofSeconds(60)));
        System.exit(done ? 0 : 1);
    }
}
