import jakarta.jms.*;
import jakarta.jms.Queue;
import java.util.*;
import java.util.concurrent.*;

/** Scenarios of the acknowledge modes and of transactions. */
class AcknowledgeModes extends Scenarios {
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
}
