import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs programs of Kafka in one JVM, each in a thread, until SIGTERM; if one of them fails, it ends with code 1.
 *
 * Arguments: for each program its main class, its arguments, and "--".
 */
class Programs {
    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((code, message) -> exit(code, message));
        List<String> words = Arrays.asList(arguments);
        while (!words.isEmpty()) {
            int end = words.indexOf("--");
            String[] own = words.subList(1, end).toArray(String[]::new);
            Class<?> program = Class.forName(words.get(0), true, new OwnStatics());
            new Thread(() -> run(program, own)).start();
            words = words.subList(end + 1, words.size());
        }
        Thread.currentThread().join();
    }

    private static void run(Class<?> program, String[] arguments) {
        try {
            program.getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            exit(1, program.getName());
        }
    }

    /** A program that succeeded only ends its thread. */
    private static void exit(int code, String message) {
        if (code != 0) {
            System.err.println("failed: " + message);
            Runtime.getRuntime().halt(1);
        }
        while (true) {
            try {
                Thread.sleep(Long.MAX_VALUE);
            } catch (InterruptedException ignored) {
                // Exit procedures must not return.
            }
        }
    }

    /** Console consumers count their records in a static field. */
    private static class OwnStatics extends ClassLoader {
        OwnStatics() {
            super(Programs.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            synchronized (getClassLoadingLock(name)) {
                if (!name.startsWith("org.apache.kafka.tools.consumer.") || findLoadedClass(name) != null) {
                    return super.loadClass(name, resolve);
                }
                try (InputStream file = getResourceAsStream(name.replace('.', '/') + ".class")) {
                    byte[] bytes = file.readAllBytes();
                    return defineClass(name, bytes, 0, bytes.length);
                } catch (IOException error) {
                    throw new ClassNotFoundException(name, error);
                }
            }
        }
    }
}
