import jakarta.jms.*;
import java.util.*;
import java.util.concurrent.*;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * What a JMS programmer does with Apache Qpid JMS, one scenario a method of the classes in TOPICS.
 *
 * Usage: java Scenarios URL [SCENARIO ...]; prints "PASS name" or "FAIL name: why" for each.
 * Each scenario uses destinations of its own name, so that any number of them may run on one server.
 */
public class Scenarios {
    interface Scenario { void run() throws Exception; }

    static final List<Class<?>> TOPICS =
        List.of(AcknowledgeModes.class, Workers.class, Messages.class, Topics.class, Connections.class);

    static String url;
    static String name;
    static final long WAIT = 10_000;
    static final long NOTHING = 300;

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        Map<String, Scenario> all = new LinkedHashMap<>();
        for (Class<?> topic : TOPICS) {
            for (java.lang.reflect.Method method : topic.getDeclaredMethods()) {
                if (method.getName().matches("test.*")) {
                    all.put(method.getName().substring(4), () -> {
                        try {
                            method.invoke(null);
                        } catch (java.lang.reflect.InvocationTargetException error) {
                            if (error.getCause() instanceof Error cause) throw cause;
                            throw (Exception) error.getCause();
                        }
                    });
                }
            }
        }
        List<String> wanted = arguments.length > 1
            ? Arrays.asList(arguments).subList(1, arguments.length) : new ArrayList<>(new TreeSet<>(all.keySet()));
        if (wanted.equals(List.of("list"))) {
            new TreeSet<>(all.keySet()).forEach(System.out::println);
            return;
        }
        ExecutorService runner = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
        for (String each : wanted) {
            name = each + "-" + UUID.randomUUID().toString().substring(0, 8);
            try {
                Future<?> done = runner.submit(() -> { all.get(each).run(); return null; });
                done.get(60, TimeUnit.SECONDS);
                System.out.println("PASS " + each);
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                StackTraceElement place = Arrays.stream(cause.getStackTrace())
                    .filter(at -> TOPICS.stream().anyMatch(topic -> at.getClassName().startsWith(topic.getName())))
                    .findFirst().orElse(null);
                System.out.println("FAIL " + each + ": " + cause + " at " + place);
            }
            System.out.flush();
        }
        System.exit(0);
    }

    // Short words.

    static Connection connect(String options) throws JMSException {
        Connection connection = new JmsConnectionFactory(url + options).createConnection();
        connection.start();
        return connection;
    }

    static Connection connect() throws JMSException { return connect(""); }

    static Connection connectAs(String clientId) throws JMSException {
        Connection connection = new JmsConnectionFactory(url).createConnection();
        connection.setClientID(clientId);
        connection.start();
        return connection;
    }

    static void same(Object expected, Object found) {
        if (!Objects.equals(expected, found)) throw new AssertionError("expected " + expected + ", found " + found);
    }

    static void holds(boolean condition, String what) {
        if (!condition) throw new AssertionError(what);
    }

    static <E extends Throwable> E raises(Class<E> kind, Scenario act) throws Exception {
        try {
            act.run();
        } catch (Throwable error) {
            if (kind.isInstance(error)) return kind.cast(error);
            throw new AssertionError("expected " + kind.getSimpleName() + ", found " + error, error);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", and nothing was thrown");
    }

    static void send(Session session, Destination to, String... texts) throws JMSException {
        try (MessageProducer producer = session.createProducer(to)) {
            for (String text : texts) producer.send(session.createTextMessage(text));
        }
    }

    static String text(Message message) throws JMSException {
        return message == null ? null : ((TextMessage) message).getText();
    }

    static List<String> receive(MessageConsumer consumer, int count) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < count; i++) texts.add(text(consumer.receive(WAIT)));
        return texts;
    }
}
