import jakarta.jms.*;
import jakarta.jms.Queue;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * What a JMS programmer does with Apache Qpid JMS, one scenario a method.
 *
 * Usage: java Scenarios URL [SCENARIO ...]; prints "PASS name" or "FAIL name: why" for each.
 * Each scenario uses destinations of its own name, so that any number of them may run on one server.
 */
public class Scenarios {
    interface Scenario { void run() throws Exception; }

    static String url;
    static String name;
    static final long WAIT = 10_000;
    static final long NOTHING = 300;

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        Map<String, Scenario> all = new LinkedHashMap<>();
        for (java.lang.reflect.Method method : Scenarios.class.getDeclaredMethods()) {
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
                    .filter(element -> element.getClassName().startsWith("Scenarios")).findFirst().orElse(null);
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

    // Acknowledge modes.

    static void testAutoAcknowledge() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "a", "b", "c");
            MessageConsumer consumer = session.createConsumer(queue);
            same(List.of("a", "b"), receive(consumer, 2));
            session.close();
            session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Message last = session.createConsumer(queue).receive(WAIT);
            same("c", text(last));
            holds(!last.getJMSRedelivered(), "a prefetched message is not a redelivered one");
        }
    }

    static void testClientAcknowledge() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "a", "b", "c");
            MessageConsumer consumer = session.createConsumer(queue);
            Message first = consumer.receive(WAIT);
            same("b", text(consumer.receive(WAIT)));
            first.acknowledge();
            same("c", text(consumer.receive(WAIT)));
            session.close();
            session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            consumer = session.createConsumer(queue);
            Message again = consumer.receive(WAIT);
            same("c", text(again));
            holds(again.getJMSRedelivered(), "what was not acknowledged is redelivered");
            same(2, again.getIntProperty("JMSXDeliveryCount"));
            again.acknowledge();
            same(null, consumer.receive(NOTHING));
        }
    }

    static void testClientRecover() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "a", "b", "c");
            MessageConsumer consumer = session.createConsumer(queue);
            same(List.of("a", "b"), receive(consumer, 2));
            session.recover();
            Message again = consumer.receive(WAIT);
            same("a", text(again));
            holds(again.getJMSRedelivered(), "recovered messages are redelivered");
            same(List.of("b", "c"), receive(consumer, 2));
            again.acknowledge();
            same(null, consumer.receive(NOTHING));
        }
    }

    static void testDupsOkAcknowledge() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.DUPS_OK_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "a", "b");
            same(List.of("a", "b"), receive(session.createConsumer(queue), 2));
            session.close();
            session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            same(null, session.createConsumer(queue).receive(NOTHING));
        }
    }

    static void testTransactedCommit() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            Session other = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            Queue answers = session.createQueue(name + "-answers");
            send(other, queue, "a", "b");
            MessageConsumer consumer = session.createConsumer(queue);
            MessageConsumer answered = other.createConsumer(answers);
            for (String expected : List.of("a", "b")) {
                same(expected, text(consumer.receive(WAIT)));
                send(session, answers, expected + "!");
                same(null, answered.receive(NOTHING));
                session.commit();
                same(expected + "!", text(answered.receive(WAIT)));
            }
            session.close();
            same(null, other.createConsumer(queue).receive(NOTHING));
        }
    }

    static void testTransactedRollback() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue(name);
            send(session, queue, "0", "1", "2", "3", "4", "5", "6", "7", "8", "9");
            session.commit();
            MessageConsumer consumer = session.createConsumer(queue);
            same(List.of("0", "1", "2", "3", "4"), receive(consumer, 5));
            send(session, queue, "never");
            session.rollback();
            Message first = consumer.receive(WAIT);
            same("0", text(first));
            holds(first.getJMSRedelivered(), "what was rolled back is redelivered");
            same(2, first.getIntProperty("JMSXDeliveryCount"));
            same(List.of("1", "2", "3", "4", "5", "6", "7", "8", "9"), receive(consumer, 9));
            session.commit();
            same(null, consumer.receive(NOTHING));
        }
    }

    static void testTransactedClose() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue(name);
            send(session, queue, "a");
            session.commit();
            same("a", text(session.createConsumer(queue).receive(WAIT)));
            send(session, queue, "never");
            session.close();
            session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(queue);
            same("a", text(consumer.receive(WAIT)));
            same(null, consumer.receive(NOTHING));
        }
    }

    static void testManyTransactions() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue(name);
            MessageProducer producer = session.createProducer(queue);
            for (int i = 0; i < 100; i++) {
                for (int j = 0; j < 10; j++) producer.send(session.createTextMessage(i + " " + j));
                if (i % 3 == 2) session.rollback(); else session.commit();
            }
            MessageConsumer consumer = session.createConsumer(queue);
            for (int i = 0; i < 100; i++) {
                if (i % 3 == 2) continue;
                for (int j = 0; j < 10; j++) same(i + " " + j, text(consumer.receive(WAIT)));
                session.commit();
            }
            same(null, consumer.receive(NOTHING));
        }
    }

    static void testIndividualAcknowledge() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(101);
            Queue queue = session.createQueue(name);
            send(session, queue, "a", "b", "c");
            MessageConsumer consumer = session.createConsumer(queue);
            consumer.receive(WAIT);
            consumer.receive(WAIT).acknowledge();
            session.close();
            session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            consumer = session.createConsumer(queue);
            same(List.of("a", "c"), receive(consumer, 2));
            same(null, consumer.receive(NOTHING));
        }
    }

    static void testNoAcknowledge() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(100);
            Queue queue = session.createQueue(name);
            send(session, queue, "a", "b");
            same("a", text(session.createConsumer(queue).receive(WAIT)));
            session.close();
            session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            same(null, session.createConsumer(queue).receive(NOTHING));
        }
    }

    static void testRejectedMessageIsADeadLetter() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "bad");
            Message message = session.createConsumer(queue).receive(WAIT);
            message.setIntProperty("JMS_AMQP_ACK_TYPE", 2);
            message.acknowledge();
            String selector = "JMS_HOLDFAST_DEAD_LETTER_QUEUE = '" + name + "'";
            Message dead = session.createConsumer(session.createQueue("DLQ"), selector).receive(WAIT);
            same("bad", text(dead));
            same("rejected by a consumer", dead.getStringProperty("JMS_HOLDFAST_DEAD_LETTER_REASON"));
            dead.acknowledge();
        }
    }

    static void testClosedConsumerCanStillBeAcknowledged() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "a", "b");
            MessageConsumer consumer = session.createConsumer(queue);
            Message message = consumer.receive(WAIT);
            consumer.close();
            message.acknowledge();
            session.close();
            session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            consumer = session.createConsumer(queue);
            Message next = consumer.receive(WAIT);
            same("b", text(next));
            holds(!next.getJMSRedelivered(), "a prefetched message is not a redelivered one");
            same(null, consumer.receive(NOTHING));
        }
    }

    static void testListener() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            List<String> seen = Collections.synchronizedList(new ArrayList<>());
            CountDownLatch all = new CountDownLatch(100);
            session.createConsumer(queue).setMessageListener(message -> {
                try {
                    seen.add(text(message));
                } catch (JMSException error) {
                    seen.add(error.toString());
                }
                all.countDown();
            });
            Session sending = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            List<String> expected = new ArrayList<>();
            for (int i = 0; i < 100; i++) expected.add("m" + i);
            send(sending, queue, expected.toArray(new String[0]));
            holds(all.await(WAIT, TimeUnit.MILLISECONDS), "all messages reach the listener");
            same(expected, seen);
        }
    }

    static void testTwoConsumersShareAQueue() throws Exception {
        try (Connection connection = connect("?jms.prefetchPolicy.all=1")) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageConsumer first = session.createConsumer(queue);
            MessageConsumer second = session.createConsumer(queue);
            send(session, queue, "a", "b", "c", "d");
            Set<String> seen = new TreeSet<>();
            for (MessageConsumer each : List.of(first, second, first, second)) seen.addAll(receive(each, 1));
            same(Set.of("a", "b", "c", "d"), seen);
        }
    }

    // Receiving.

    static void testReceiveTimeouts() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageConsumer consumer = session.createConsumer(queue);
            long began = System.nanoTime();
            same(null, consumer.receive(200));
            same(null, consumer.receiveNoWait());
            long passed = (System.nanoTime() - began) / 1_000_000;
            holds(passed >= 200 && passed < 5000, "receive(200) and receiveNoWait() took " + passed + " ms");
            send(session, queue, "a");
            same("a", text(consumer.receive(WAIT)));
        }
    }

    static void testPrefetchZero() throws Exception {
        try (Connection connection = connect("?jms.prefetchPolicy.all=0")) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageConsumer lazy = session.createConsumer(queue);
            MessageConsumer busy = session.createConsumer(queue);
            send(session, queue, "a", "b", "c");
            same(List.of("a", "b"), receive(busy, 2));
            same("c", text(lazy.receiveNoWait()));
            same(null, lazy.receive(NOTHING));
            same(null, lazy.receiveNoWait());
        }
    }

    static void testStoppedConnectionHoldsMessagesBack() throws Exception {
        try (Connection connection = connect()) {
            connection.stop();
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageConsumer consumer = session.createConsumer(queue);
            send(session, queue, "a");
            same(null, consumer.receive(NOTHING));
            connection.start();
            same("a", text(consumer.receive(WAIT)));
        }
    }

    // Messages.

    static void testHeadersAndProperties() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            TextMessage sent = session.createTextMessage("grüße");
            sent.setJMSCorrelationID("c-1");
            sent.setJMSReplyTo(session.createTopic("answers"));
            sent.setJMSType("greeting");
            sent.setBooleanProperty("boolean", true);
            sent.setByteProperty("byte", (byte) -7);
            sent.setShortProperty("short", (short) 30000);
            sent.setIntProperty("int", -70000);
            sent.setLongProperty("long", Long.MIN_VALUE);
            sent.setFloatProperty("float", 1.5f);
            sent.setDoubleProperty("double", Math.PI);
            sent.setStringProperty("string", "text");
            sent.setStringProperty("nothing", null);
            sent.setStringProperty("JMSXGroupID", "g");
            sent.setIntProperty("JMSXGroupSeq", 3);
            MessageProducer producer = session.createProducer(queue);
            producer.send(sent, DeliveryMode.NON_PERSISTENT, 7, 60_000);
            TextMessage found = (TextMessage) session.createConsumer(queue).receive(WAIT);
            same("grüße", found.getText());
            same(sent.getJMSMessageID(), found.getJMSMessageID());
            same("c-1", found.getJMSCorrelationID());
            same("answers", ((Topic) found.getJMSReplyTo()).getTopicName());
            same(name, ((Queue) found.getJMSDestination()).getQueueName());
            same("greeting", found.getJMSType());
            same(DeliveryMode.NON_PERSISTENT, found.getJMSDeliveryMode());
            same(7, found.getJMSPriority());
            same(sent.getJMSTimestamp(), found.getJMSTimestamp());
            same(sent.getJMSExpiration(), found.getJMSExpiration());
            same(1, found.getIntProperty("JMSXDeliveryCount"));
            same(true, found.getBooleanProperty("boolean"));
            same((byte) -7, found.getByteProperty("byte"));
            same((short) 30000, found.getShortProperty("short"));
            same(-70000, found.getIntProperty("int"));
            same(Long.MIN_VALUE, found.getLongProperty("long"));
            same(1.5f, found.getFloatProperty("float"));
            same(Math.PI, found.getDoubleProperty("double"));
            same("text", found.getStringProperty("string"));
            same(null, found.getStringProperty("nothing"));
            holds(found.propertyExists("nothing"), "a null property is there");
            same("g", found.getStringProperty("JMSXGroupID"));
            same(3, found.getIntProperty("JMSXGroupSeq"));
        }
    }

    static void testMessageTypes() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageProducer producer = session.createProducer(queue);
            producer.send(session.createMessage());
            producer.send(session.createTextMessage(null));
            BytesMessage bytes = session.createBytesMessage();
            bytes.writeBytes(new byte[] {0, 1, 2, -1});
            producer.send(bytes);
            MapMessage map = session.createMapMessage();
            map.setInt("i", 5);
            map.setString("s", "x");
            map.setBytes("b", new byte[] {9});
            map.setObject("n", null);
            producer.send(map);
            StreamMessage stream = session.createStreamMessage();
            stream.writeLong(7);
            stream.writeString("y");
            stream.writeBoolean(true);
            producer.send(stream);
            producer.send(session.createObjectMessage(new ArrayList<>(List.of("o", 1))));
            MessageConsumer consumer = session.createConsumer(queue);
            Message plain = consumer.receive(WAIT);
            holds(!(plain instanceof TextMessage) && !(plain instanceof BytesMessage), "a message without a body");
            same(null, ((TextMessage) consumer.receive(WAIT)).getText());
            same(4L, ((BytesMessage) consumer.receive(WAIT)).getBodyLength());
            MapMessage mapped = (MapMessage) consumer.receive(WAIT);
            same(5, mapped.getInt("i"));
            same("x", mapped.getString("s"));
            same((byte) 9, mapped.getBytes("b")[0]);
            StreamMessage streamed = (StreamMessage) consumer.receive(WAIT);
            same(7L, streamed.readLong());
            same("y", streamed.readString());
            same(true, streamed.readBoolean());
            raises(MessageEOFException.class, streamed::readInt);
            same(List.of("o", 1), ((ObjectMessage) consumer.receive(WAIT)).getObject());
        }
    }

    static void testLargeMessages() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            byte[] body = new byte[5 * 1024 * 1024];
            new Random(1).nextBytes(body);
            BytesMessage sent = session.createBytesMessage();
            sent.writeBytes(body);
            MessageProducer producer = session.createProducer(queue);
            for (int i = 0; i < 3; i++) producer.send(sent);
            MessageConsumer consumer = session.createConsumer(queue);
            for (int i = 0; i < 3; i++) {
                BytesMessage found = (BytesMessage) consumer.receive(WAIT);
                byte[] read = new byte[body.length];
                same(body.length, found.readBytes(read));
                holds(Arrays.equals(body, read), "the body arrives as it was");
            }
        }
    }

    static void testMessageAboveTheLimit() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(session.createQueue(name));
            BytesMessage large = session.createBytesMessage();
            large.writeBytes(new byte[17 * 1024 * 1024]);
            raises(JMSException.class, () -> producer.send(large));
        }
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            send(session, session.createQueue(name), "others are not harmed");
        }
    }

    static void testPriorities() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageProducer producer = session.createProducer(queue);
            for (int priority : new int[] {0, 9, 4}) {
                producer.send(session.createTextMessage("p" + priority), DeliveryMode.PERSISTENT, priority, 0);
            }
            same(List.of("p9", "p4", "p0"), receive(session.createConsumer(queue), 3));
        }
    }

    static void testTimeToLive() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageProducer producer = session.createProducer(queue);
            producer.send(session.createTextMessage("short"), DeliveryMode.PERSISTENT, 4, 50);
            producer.send(session.createTextMessage("long"), DeliveryMode.PERSISTENT, 4, 60_000);
            Thread.sleep(200);
            MessageConsumer consumer = session.createConsumer(queue);
            same("long", text(consumer.receive(WAIT)));
            same(null, consumer.receive(NOTHING));
        }
    }

    static void testDeliveryDelay() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageConsumer consumer = session.createConsumer(queue);
            MessageProducer producer = session.createProducer(queue);
            producer.setDeliveryDelay(700);
            producer.send(session.createTextMessage("late"));
            producer.setDeliveryDelay(0);
            producer.send(session.createTextMessage("early"));
            same("early", text(consumer.receive(WAIT)));
            same(null, consumer.receive(100));
            Message late = consumer.receive(WAIT);
            same("late", text(late));
            holds(late.getJMSDeliveryTime() >= late.getJMSTimestamp() + 700, "the delivery time is in the message");
        }
    }

    static void testAnonymousProducer() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            Topic topic = session.createTopic(name);
            MessageConsumer ofQueue = session.createConsumer(queue);
            MessageConsumer ofTopic = session.createConsumer(topic);
            MessageProducer producer = session.createProducer(null);
            producer.send(queue, session.createTextMessage("q"));
            producer.send(topic, session.createTextMessage("t"));
            same("q", text(ofQueue.receive(WAIT)));
            same("t", text(ofTopic.receive(WAIT)));
            same(null, ofQueue.receive(NOTHING));
        }
    }

    static void testAsynchronousSends() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(session.createQueue(name));
            List<String> told = Collections.synchronizedList(new ArrayList<>());
            CountDownLatch all = new CountDownLatch(1000);
            List<String> expected = new ArrayList<>();
            for (int i = 0; i < 1000; i++) {
                expected.add("m" + i);
                producer.send(session.createTextMessage("m" + i), new CompletionListener() {
                    public void onCompletion(Message message) {
                        try {
                            told.add(text(message));
                        } catch (JMSException error) {
                            told.add(error.toString());
                        }
                        all.countDown();
                    }

                    public void onException(Message message, Exception error) {
                        told.add(error.toString());
                        all.countDown();
                    }
                });
            }
            holds(all.await(WAIT, TimeUnit.MILLISECONDS), "all sends are completed");
            same(expected, told);
        }
    }

    static void testGroups() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageConsumer first = session.createConsumer(queue);
            MessageConsumer second = session.createConsumer(queue);
            MessageProducer producer = session.createProducer(queue);
            for (int i = 0; i < 20; i++) {
                TextMessage message = session.createTextMessage(i % 2 == 0 ? "even" : "odd");
                message.setStringProperty("JMSXGroupID", message.getText());
                producer.send(message);
            }
            Set<String> ofFirst = new HashSet<>(receive(first, 10));
            Set<String> ofSecond = new HashSet<>(receive(second, 10));
            same(1, ofFirst.size());
            same(1, ofSecond.size());
        }
    }

    // Selectors and browsers.

    static void testSelectors() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageProducer producer = session.createProducer(queue);
            for (int i = 0; i < 100; i++) {
                TextMessage message = session.createTextMessage("m" + i);
                message.setIntProperty("number", i);
                message.setStringProperty("colour", i % 2 == 0 ? "red" : "blue");
                message.setJMSType("t" + i % 10);
                producer.send(message);
            }
            MessageConsumer consumer = session.createConsumer(queue, "colour = 'red' AND number BETWEEN 90 AND 95");
            same(List.of("m90", "m92", "m94"), receive(consumer, 3));
            same(null, consumer.receive(NOTHING));
            consumer.close();
            consumer = session.createConsumer(queue, "JMSType LIKE 't_' AND JMSType IN ('t3') AND JMSPriority = 4");
            same("m3", text(consumer.receive(WAIT)));
            consumer.close();
            same("m0", text(session.createConsumer(queue).receive(WAIT)));
        }
    }

    static void testSelectorOfATopic() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Topic topic = session.createTopic(name);
            MessageConsumer consumer = session.createConsumer(topic, "colour = 'red'");
            MessageProducer producer = session.createProducer(topic);
            for (String colour : List.of("blue", "red")) {
                TextMessage message = session.createTextMessage(colour);
                message.setStringProperty("colour", colour);
                producer.send(message);
            }
            same("red", text(consumer.receive(WAIT)));
        }
    }

    static void testInvalidSelector() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            raises(InvalidSelectorException.class, () -> session.createConsumer(session.createQueue(name), "a = = 1"));
        }
        try (Connection connection = connect("?jms.validateSelector=false")) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            JMSException error =
                raises(JMSException.class, () -> session.createConsumer(session.createQueue(name), "a = = 1"));
            holds(error.getMessage().contains("column 5"), error.getMessage());
            send(session, session.createQueue(name), "the session goes on");
        }
    }

    static void testBrowser() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "a", "b", "c");
            QueueBrowser browser = session.createBrowser(queue);
            List<String> seen = new ArrayList<>();
            for (Enumeration<?> each = browser.getEnumeration(); each.hasMoreElements(); ) {
                seen.add(text((Message) each.nextElement()));
            }
            same(List.of("a", "b", "c"), seen);
            browser.close();
            browser = session.createBrowser(queue, "JMSMessageID IS NULL");
            holds(!browser.getEnumeration().hasMoreElements(), "nothing is selected");
            browser.close();
            same(List.of("a", "b", "c"), receive(session.createConsumer(queue), 3));
        }
    }

    // Topics.

    static void testTopicGoesToAll() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Topic topic = session.createTopic(name);
            MessageConsumer first = session.createConsumer(topic);
            MessageConsumer second = session.createConsumer(topic);
            send(session, topic, "a", "b");
            same(List.of("a", "b"), receive(first, 2));
            same(List.of("a", "b"), receive(second, 2));
        }
    }

    static void testNoLocal() throws Exception {
        try (Connection connection = connect(); Connection other = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Topic topic = session.createTopic(name);
            MessageConsumer consumer = session.createConsumer(topic, null, true);
            send(session, topic, "own");
            send(other.createSession(Session.AUTO_ACKNOWLEDGE), topic, "other");
            same("other", text(consumer.receive(WAIT)));
            same(null, consumer.receive(NOTHING));
        }
    }

    static void testDurableSubscription() throws Exception {
        try (Connection connection = connectAs(name)) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Topic topic = session.createTopic(name);
            MessageConsumer consumer = session.createDurableConsumer(topic, "s");
            raises(JMSException.class, () -> session.createDurableConsumer(topic, "s"));
            raises(JMSException.class, () -> session.unsubscribe("s"));
            consumer.close();
            send(session, topic, "a");
        }
        try (Connection connection = connectAs(name)) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Topic topic = session.createTopic(name);
            send(session, topic, "b");
            MessageConsumer consumer = session.createDurableSubscriber(topic, "s");
            same(List.of("a", "b"), receive(consumer, 2));
            consumer.close();
            session.unsubscribe("s");
            raises(InvalidDestinationException.class, () -> session.unsubscribe("s"));
            send(session, topic, "lost");
            consumer = session.createDurableConsumer(topic, "s");
            same(null, consumer.receive(NOTHING));
            consumer.close();
            session.unsubscribe("s");
        }
    }

    static void testDurableSubscriptionWithAnotherSelectorIsAnew() throws Exception {
        try (Connection connection = connectAs(name)) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Topic topic = session.createTopic(name);
            session.createDurableConsumer(topic, "s", "colour = 'red'", false).close();
            TextMessage message = session.createTextMessage("x");
            message.setStringProperty("colour", "red");
            session.createProducer(topic).send(message);
            MessageConsumer consumer = session.createDurableConsumer(topic, "s", "colour = 'blue'", false);
            same(null, consumer.receive(NOTHING));
            consumer.close();
            session.unsubscribe("s");
        }
    }

    static void testDurableSubscriptionNeedsAClientId() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            raises(jakarta.jms.IllegalStateException.class,
                () -> session.createDurableConsumer(session.createTopic(name), "s"));
        }
    }

    static void shared(Connection connection, Connection other, boolean durable) throws Exception {
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Session second = other.createSession(Session.AUTO_ACKNOWLEDGE);
        Topic topic = session.createTopic(name);
        MessageConsumer one =
            durable ? session.createSharedDurableConsumer(topic, name) : session.createSharedConsumer(topic, name);
        MessageConsumer two =
            durable ? second.createSharedDurableConsumer(topic, name) : second.createSharedConsumer(topic, name);
        send(session, topic, "a", "b", "c", "d");
        Set<String> seen = new TreeSet<>();
        for (int i = 0; i < 2; i++) {
            seen.add(text(one.receive(WAIT)));
            seen.add(text(two.receive(WAIT)));
        }
        same(Set.of("a", "b", "c", "d"), seen);
        one.close();
        two.close();
        send(session, topic, "e");
        MessageConsumer again =
            durable ? session.createSharedDurableConsumer(topic, name) : session.createSharedConsumer(topic, name);
        same(durable ? "e" : null, text(again.receive(durable ? WAIT : NOTHING)));
        again.close();
        if (durable) session.unsubscribe(name);
    }

    static void testSharedSubscription() throws Exception {
        try (Connection connection = connect(); Connection other = connect()) {
            shared(connection, other, false);
        }
    }

    static void testSharedDurableSubscription() throws Exception {
        try (Connection connection = connect(); Connection other = connect()) {
            shared(connection, other, true);
        }
    }

    static void testSharedSubscriptionOfAClientId() throws Exception {
        try (Connection connection = connectAs(name)) {
            shared(connection, connection, false);
        }
    }

    static void testSharedDurableSubscriptionOfAClientId() throws Exception {
        try (Connection connection = connectAs(name)) {
            shared(connection, connection, true);
        }
    }

    // Temporary destinations.

    static void testRequestAndReply() throws Exception {
        try (Connection connection = connect(); Connection server = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Session serving = server.createSession(Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            TemporaryQueue answers = session.createTemporaryQueue();
            MessageConsumer answered = session.createConsumer(answers);
            TextMessage question = session.createTextMessage("2 + 2");
            question.setJMSReplyTo(answers);
            session.createProducer(queue).send(question);
            Message asked = serving.createConsumer(queue).receive(WAIT);
            TextMessage answer = serving.createTextMessage("4");
            answer.setJMSCorrelationID(asked.getJMSMessageID());
            serving.createProducer(asked.getJMSReplyTo()).send(answer);
            Message found = answered.receive(WAIT);
            same("4", text(found));
            same(question.getJMSMessageID(), found.getJMSCorrelationID());
            raises(JMSException.class, () -> serving.createConsumer(asked.getJMSReplyTo()));
            answered.close();
            answers.delete();
            raises(JMSException.class, () -> serving.createProducer(asked.getJMSReplyTo()).send(answer));
        }
    }

    static void testTemporaryTopic() throws Exception {
        try (Connection connection = connect(); Connection other = connect()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            TemporaryTopic topic = session.createTemporaryTopic();
            MessageConsumer consumer = session.createConsumer(topic);
            send(other.createSession(Session.AUTO_ACKNOWLEDGE), topic, "a");
            same("a", text(consumer.receive(WAIT)));
        }
    }

    // Connections.

    static void testClientIdIsForOneConnection() throws Exception {
        try (Connection connection = connectAs(name)) {
            raises(InvalidClientIDException.class, () -> connectAs(name));
        }
        connectAs(name).close();
    }

    static void testMetaData() throws Exception {
        try (Connection connection = connect()) {
            same(3, connection.getMetaData().getJMSMajorVersion());
        }
    }

    static void testContext() throws Exception {
        try (JMSContext context = new JmsConnectionFactory(url).createContext(JMSContext.CLIENT_ACKNOWLEDGE)) {
            Queue queue = context.createQueue(name);
            context.createProducer().setProperty("k", "v").setPriority(8).send(queue, "hello");
            JMSConsumer consumer = context.createConsumer(queue, "k = 'v'");
            same("hello", consumer.receiveBody(String.class, WAIT));
            context.acknowledge();
            same(null, consumer.receiveBody(String.class, NOTHING));
        }
    }

    static void testManySessions() throws Exception {
        try (Connection connection = connect()) {
            List<Thread> threads = new ArrayList<>();
            AtomicInteger received = new AtomicInteger();
            for (int i = 0; i < 8; i++) {
                String each = name + i;
                Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
                Thread thread = new Thread(() -> {
                    try {
                        Queue queue = session.createQueue(each);
                        MessageConsumer consumer = session.createConsumer(queue);
                        for (int j = 0; j < 50; j++) {
                            send(session, queue, "m" + j);
                            if (("m" + j).equals(text(consumer.receive(WAIT)))) received.incrementAndGet();
                        }
                    } catch (JMSException error) {
                        error.printStackTrace();
                    }
                });
                threads.add(thread);
                thread.start();
            }
            for (Thread thread : threads) thread.join();
            same(400, received.get());
        }
    }
}
