import jakarta.jms.*;
import jakarta.jms.Queue;
import java.util.*;
import java.util.stream.IntStream;

/** Scenarios of workers that share a queue: what fails, message groups, and workers that join. */
class Workers extends Scenarios {
    /** A consumer asks for each message as it wants it, and holds none ahead. */
    static final String PULL = "?jms.prefetchPolicy.all=0";
    static final int INDIVIDUAL = 101;
    static final int MODIFIED_FAILED = 4;

    static Session session(Connection connection) throws JMSException {
        return connection.createSession(Session.AUTO_ACKNOWLEDGE);
    }

    /** Within one message of fair: the last four may go to those that ask first. */
    static void testFourWorkersShareABacklog() throws Exception {
        for (String prefetch : List.of("0", "1")) {
            String options = "?jms.prefetchPolicy.all=" + prefetch;
            try (Connection one = connect(options); Connection other = connect(options)) {
                Queue queue = session(one).createQueue(name + prefetch);
                send(session(one), queue, IntStream.range(0, 100).mapToObj(i -> "m" + i).toArray(String[]::new));
                List<MessageConsumer> workers = new ArrayList<>();
                for (Connection each : List.of(one, one, other, other))
                    workers.add(session(each).createConsumer(queue));
                Set<String> seen = new HashSet<>();
                for (int round = 0; round < 24; round++)
                    for (MessageConsumer worker : workers)
                        holds(seen.add(text(worker.receive(WAIT))), "each receives another message");
                holds(!seen.contains(null), "there is a message for each");
            }
        }
    }

    static void testWorkerThatJoinsGetsWork() throws Exception {
        try (Connection connection = connect("?jms.prefetchPolicy.all=1")) {
            Queue queue = session(connection).createQueue(name);
            send(session(connection), queue, "a", "b", "c", "d");
            MessageConsumer first = session(connection).createConsumer(queue);
            same("a", text(first.receive(WAIT)));
            holds(session(connection).createConsumer(queue).receive(WAIT) != null, "there is work for a second one");
        }
    }

    static void testWhatFailsTwiceIsPassedByOthers() throws Exception {
        try (Connection connection = connect(PULL)) {
            Session session = connection.createSession(INDIVIDUAL);
            Queue queue = session.createQueue(name);
            send(session, queue, "bad", "good");
            MessageConsumer consumer = session.createConsumer(queue);
            for (int count = 1; count <= 2; count++) fail(consumer, "bad", count);
            Message good = consumer.receive(WAIT);
            same("good", text(good));
            good.acknowledge();
            fail(consumer, "bad", 3);
        }
    }

    static void fail(MessageConsumer consumer, String text, int count) throws JMSException {
        Message message = consumer.receive(WAIT);
        same(text, text(message));
        same(count, message.getIntProperty("JMSXDeliveryCount"));
        message.setIntProperty("JMS_AMQP_ACK_TYPE", MODIFIED_FAILED);
        message.acknowledge();
    }

    static void testOrderHoldsHoweverOftenASessionRecovers() throws Exception {
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            send(session, queue, "a", "b", "c", "d");
            MessageConsumer consumer = session.createConsumer(queue);
            for (int i = 0; i < 3; i++) {
                same(List.of("a", "b"), receive(consumer, 2));
                session.recover();
            }
            same(List.of("a", "b", "c", "d"), receive(consumer, 4));
        }
    }

    static void testOrderHoldsHoweverOftenATransactionIsRolledBack() throws Exception {
        for (String options : List.of("", PULL)) {
            try (Connection connection = connect(options)) {
                Session session = connection.createSession(Session.SESSION_TRANSACTED);
                Queue queue = session.createQueue(name);
                send(session, queue, "a", "b", "c", "d");
                session.commit();
                MessageConsumer consumer = session.createConsumer(queue);
                for (int count = 1; count <= 3; count++) {
                    Message first = consumer.receive(WAIT);
                    same("a", text(first));
                    same(count, first.getIntProperty("JMSXDeliveryCount"));
                    same("b", text(consumer.receive(WAIT)));
                    session.rollback();
                }
                same(List.of("a", "b", "c", "d"), receive(consumer, 4));
                session.commit();
                same(null, consumer.receive(NOTHING));
            }
        }
    }

    static void testGroupIsOneConsumersWhileInHandAndMovesToOneThatJoins() throws Exception {
        try (Connection connection = connect(PULL)) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(name);
            MessageProducer producer = session.createProducer(queue);
            for (String text : List.of("g1", "h1", "g2", "h2", "g3")) {
                TextMessage message = session.createTextMessage(text);
                message.setStringProperty("JMSXGroupID", text.substring(0, 1));
                producer.send(message);
            }
            Message inHand = session.createConsumer(queue).receive(WAIT);
            same("g1", text(inHand));
            MessageConsumer joined = session(connection).createConsumer(queue);
            same(List.of("h1", "h2"), receive(joined, 2));
            same(null, joined.receive(NOTHING));
            inHand.acknowledge();
            same(List.of("g2", "g3"), receive(joined, 2));
        }
    }
}
