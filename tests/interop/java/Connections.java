import jakarta.jms.*;
import jakarta.jms.Queue;
import java.util.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Scenarios of temporary destinations, connections and contexts. */
class Connections extends Scenarios {
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
