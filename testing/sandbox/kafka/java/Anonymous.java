import java.util.function.Consumer;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;

/** A consumer of Spring Cloud Stream without a group: it makes up a group id for each topic. Arguments: properties. */
@SpringBootConfiguration(proxyBeanMethods = false)
@EnableAutoConfiguration
public class Anonymous {
    @Bean
    public Consumer<String> print() {
        return System.out::println;
    }

    public static void main(String[] properties) {
        SpringApplication.run(Anonymous.class, properties);
    }
}
