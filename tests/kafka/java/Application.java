import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * A Kafka Streams application (4.3) of one of these kinds:
 *
 * counting: it counts the records of a topic by their keys, in a store with a changelog topic.
 * rekeyed: the same, by way of a repartition topic.
 * stateless: it only prints the keys; it has no topics of its own.
 *
 * Arguments: kind, bootstrap servers, application id, group protocol, a folder of its own, topic, and how many records it
 * handles before it ends. It prints the key and the count after each of them.
 */
class Application {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[1]);
        properties.put("application.id", arguments[2]);
        properties.put("group.protocol", arguments[3]);
        properties.put("state.dir", arguments[4]);
        properties.put("auto.offset.reset", "earliest");
        properties.put("statestore.cache.max.bytes", "0");
        CountDownLatch left = new CountDownLatch(Integer.parseInt(arguments[6]));
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> records = builder.stream(arguments[5], Consumed.with(Serdes.String(), Serdes.String()));
        if (arguments[0].equals("stateless")) {
            records.foreach((key, value) -> handled(key, left));
        } else {
            // A key that was set again may belong to another partition.
            KStream<String, String> keyed =
                arguments[0].equals("rekeyed") ? records.selectKey((key, value) -> key) : records;
            keyed.groupByKey(Grouped.with("again", Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                    .withKeySerde(Serdes.String()))
                .toStream()
                .foreach((key, count) -> handled(key + " " + count, left));
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.start();
        boolean done = left.await(180, TimeUnit.SECONDS);
        streams.close(new KafkaStreams.CloseOptions().leaveGroup(true).timeout(Duration.ofSeconds(60)));
        System.exit(done ? 0 : 1);
    }

    private static void handled(String what, CountDownLatch left) {
        System.out.println(what);
        left.countDown();
    }
}
