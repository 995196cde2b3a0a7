import jakarta.jms.*;
import jakarta.jms.Queue;
import java.util.*;
import java.util.concurrent.*;

/** Scenarios of receiving and of sending messages of every kind. */
class Messages extends Scenarios {
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
}
