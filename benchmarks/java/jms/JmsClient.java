import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * Qpid JMS as producer or consumer of {@code benchmarks/peers.py}: what {@code benchmarks/jms_client.py} is for the SDK,
 * where the lines of the input are described. Its arguments are the URL, and a user and a password where the broker
 * asks for them. Its first answer is the version of Qpid JMS.
 */
public class JmsClient {
    private static final int BATCH = 100;
    private static final int BODY_BYTES = 1024;
    private static final int WINDOW = 1000;
    private static final int WAIT_SECONDS = 60;

    private final Connection connection;

    private JmsClient(Connection connection) {
        this.connection = connection;
    }

    public static void main(String[] arguments) {
        int status = 1;
        try {
            JmsConnectionFactory factory = new JmsConnectionFactory(arguments[0]);
            Connection connection = arguments.length > 1
                ? factory.createConnection(arguments[1], arguments[2])
                : factory.createConnection();
            connection.start();
            System.out.println("done " + connection.getMetaData().getProviderVersion());
            JmsClient client = new JmsClient(connection);
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                System.out.println("done " + client.execute(line.split(" ")));
            }
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(status); // threads of the connection would keep it alive
    }

    private String execute(String[] words) throws Exception {
        int count = Integer.parseInt(words[2]);
        try (Session session = connection.createSession(mode(words[3]))) {
            double[] times = words[0].equals("send")
                ? send(session, words[1], count)
                : receive(session, words[1], count);
            return String.format(Locale.ROOT, "%.6f %.6f", times[0], times[1]);
        }
    }

    private static int mode(String name) {
        switch (name) {
            case "AUTO":
                return Session.AUTO_ACKNOWLEDGE;
            case "DUPS_OK":
                return Session.DUPS_OK_ACKNOWLEDGE;
            case "TRANSACTED":
                return Session.SESSION_TRANSACTED;
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static double[] send(Session session, String queue, int count) throws Exception {
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        double started = now();
        if (session.getTransacted()) {
            for (int number = 0; number < count; number++) {
                producer.send(message(session, number));
                if (number % BATCH == BATCH - 1) {
                    session.commit();
                }
            }
            session.commit();
            return new double[] {started, now()};
        }
        Sent sent = new Sent();
        for (int number = 0; number < count; number++) {
            sent.await(1);
            producer.send(message(session, number), sent);
        }
        sent.await(WINDOW);
        return new double[] {started, now()};
    }

    private static double[] receive(Session session, String queue, int count) throws Exception {
        MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
        double started = 0;
        for (int number = 0; number < count; number++) {
            Message message = consumer.receive(WAIT_SECONDS * 1000L);
            if (number == 0) {
                started = now();
            }
            if (message == null || !is(message, number)) {
                throw new IllegalStateException("expected message " + number + ", got " + message);
            }
            if (session.getTransacted() && number % BATCH == BATCH - 1) {
                session.commit();
            }
        }
        if (session.getTransacted()) {
            session.commit();
        }
        return new double[] {started, now()};
    }

    private static Message message(Session session, int number) throws Exception {
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(ByteBuffer.allocate(BODY_BYTES).putLong(number).array());
        message.setStringProperty("colour", "red");
        return message;
    }

    private static boolean is(Message message, int number) throws Exception {
        byte[] body = message.getBody(byte[].class);
        return body.length == BODY_BYTES
            && ByteBuffer.wrap(body).getLong() == number
            && message.getStringProperty("colour").equals("red");
    }

    private static double now() {
        return Duration.between(Instant.EPOCH, Instant.now()).toNanos() / 1e9;
    }

    /** Told of each message that is confirmed; has the sends wait that are more than the window. */
    private static final class Sent implements CompletionListener {
        private final Semaphore room = new Semaphore(WINDOW);
        private volatile Exception error;

        void await(int places) throws Exception {
            if (!room.tryAcquire(places, WAIT_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException("the sends were not confirmed");
            }
            if (error != null) {
                throw error;
            }
        }

        @Override
        public void onCompletion(Message message) {
            room.release();
        }

        @Override
        public void onException(Message message, Exception exception) {
            error = exception;
            room.release();
        }
    }
}
