import jakarta.jms.*;
import jakarta.jms.Queue;
import java.util.*;

/** Scenarios of selectors, browsers, topics and subscriptions. */
class Topics extends Scenarios {
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
}
