import jakarta.jms.*;
import jakarta.jms.Connection;
import java.lang.reflect.Proxy;
import java.util.*;
import org.apache.qpid.jms.JmsConnection;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.JmsConnectionListener;

/**
 * Exchanges messages with a program in another language.
 *
 * java Exchange send URL QUEUE           sends one message of each type, with every header and property
 * java Exchange receive URL QUEUE COUNT  prints what it receives, a line each
 * java Exchange listen URL QUEUE         prints what it receives and what happens to the connection, until "end" comes
 * java Exchange login URL USER PASSWORD  prints "welcome", or the class of the exception
 */
public class Exchange {
    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "send" -> send(arguments[1], arguments[2]);
            case "receive" -> receive(arguments[1], arguments[2], Integer.parseInt(arguments[3]));
            case "listen" -> listen(arguments[1], arguments[2]);
            case "login" -> login(arguments[1], arguments[2], arguments[3]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0);
    }

    static void send(String url, String name) throws Exception {
        try (Connection connection = new JmsConnectionFactory(url).createConnection()) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(session.createQueue(name));
            producer.setPriority(7);
            producer.setTimeToLive(60_000);
            TextMessage text = session.createTextMessage("grüße 😀");
            text.setJMSCorrelationID("c-1");
            text.setJMSReplyTo(session.createTopic("answers"));
            text.setJMSType("greeting");
            text.setStringProperty("JMSXGroupID", "g");
            text.setIntProperty("JMSXGroupSeq", 3);
            text.setBooleanProperty("boolean", true);
            text.setByteProperty("byte", (byte) -7);
            text.setShortProperty("short", (short) 30000);
            text.setIntProperty("int", -70000);
            text.setLongProperty("long", Long.MIN_VALUE);
            text.setFloatProperty("float", 1.5f);
            text.setDoubleProperty("double", Math.PI);
            text.setStringProperty("string", "x");
            text.setStringProperty("nothing", null);
            producer.send(text);
            TextMessage bytesId = session.createTextMessage(null);
            bytesId.setJMSCorrelationIDAsBytes(new byte[] {1, 2});
            producer.send(bytesId);
            producer.send(session.createMessage());
            BytesMessage bytes = session.createBytesMessage();
            bytes.writeBytes(new byte[] {0, 1, -1});
            producer.send(bytes);
            MapMessage map = session.createMapMessage();
            map.setBoolean("boolean", true);
            map.setByte("byte", (byte) -7);
            map.setChar("char", 'ü');
            map.setDouble("double", 0.25);
            map.setLong("long", Long.MAX_VALUE);
            map.setString("string", "x");
            map.setBytes("bytes", new byte[] {9});
            map.setObject("nothing", null);
            producer.send(map);
            StreamMessage stream = session.createStreamMessage();
            stream.writeInt(1);
            stream.writeString("two");
            stream.writeFloat(3.5f);
            stream.writeBytes(new byte[] {4});
            stream.writeObject(null);
            producer.send(stream);
            ObjectMessage typed = session.createObjectMessage();
            typed.setBooleanProperty("JMS_AMQP_TYPED_ENCODING", true);
            typed.setObject(new ArrayList<>(List.of("o", 1L)));
            producer.send(typed);
        }
    }

    static void receive(String url, String name, int count) throws Exception {
        try (Connection connection = new JmsConnectionFactory(url).createConnection()) {
            connection.start();
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(name));
            for (int i = 0; i < count; i++) System.out.println(described(consumer.receive(10_000)));
        }
    }

    static String described(Message message) throws Exception {
        if (message == null) return "nothing";
        StringBuilder line = new StringBuilder();
        if (message instanceof TextMessage text) {
            line.append("text ").append(text.getText());
        } else if (message instanceof BytesMessage bytes) {
            byte[] body = new byte[(int) bytes.getBodyLength()];
            bytes.readBytes(body);
            line.append("bytes ").append(HexFormat.of().formatHex(body));
        } else if (message instanceof MapMessage map) {
            Map<String, String> entries = new TreeMap<>();
            for (String each : Collections.list((Enumeration<String>) map.getMapNames())) {
                entries.put(each, shown(map.getObject(each)));
            }
            line.append("map ").append(entries);
        } else if (message instanceof StreamMessage stream) {
            List<String> items = new ArrayList<>();
            try {
                while (true) items.add(shown(stream.readObject()));
            } catch (MessageEOFException end) {
                line.append("stream ").append(items);
            }
        } else if (message instanceof ObjectMessage object) {
            line.append("object ").append(shown(object.getObject()));
        } else {
            line.append("message");
        }
        line.append(" | id=").append(message.getJMSMessageID());
        line.append(" correlation=").append(message.getJMSCorrelationID());
        line.append(" replyTo=").append(message.getJMSReplyTo());
        line.append(" type=").append(message.getJMSType());
        line.append(" mode=").append(message.getJMSDeliveryMode());
        line.append(" priority=").append(message.getJMSPriority());
        line.append(" expires=").append(message.getJMSExpiration() > 0);
        line.append(" count=").append(message.getIntProperty("JMSXDeliveryCount"));
        Map<String, String> properties = new TreeMap<>();
        for (String each : Collections.list((Enumeration<String>) message.getPropertyNames())) {
            properties.put(each, shown(message.getObjectProperty(each)));
        }
        return line.append(" properties=").append(properties).toString();
    }

    static String shown(Object value) {
        if (value == null) return "null";
        if (value instanceof byte[] bytes) return "byte[]:" + HexFormat.of().formatHex(bytes);
        return value.getClass().getSimpleName() + ":" + value;
    }

    static void listen(String url, String name) throws Exception {
        try (Connection connection = new JmsConnectionFactory(url).createConnection()) {
            JmsConnectionListener listener = (JmsConnectionListener) Proxy.newProxyInstance(
                Exchange.class.getClassLoader(), new Class<?>[] {JmsConnectionListener.class}, (self, method, values) -> {
                    switch (method.getName()) {
                        case "onConnectionInterrupted" -> System.out.println("interrupted");
                        case "onConnectionRestored" -> System.out.println("restored");
                        case "equals" -> { return self == values[0]; }
                        case "hashCode" -> { return 1; }
                    }
                    return null;
                });
            ((JmsConnection) connection).addConnectionListener(listener);
            connection.start();
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(name));
            System.out.println("ready");
            while (true) {
                TextMessage message = (TextMessage) consumer.receive(30_000);
                System.out.println(message == null ? "nothing" : message.getText());
                if (message == null || message.getText().equals("end")) return;
            }
        }
    }

    static void login(String url, String user, String password) throws Exception {
        try (Connection connection = new JmsConnectionFactory(user, password, url).createConnection()) {
            connection.start();
            System.out.println("welcome");
        } catch (JMSException error) {
            System.out.println(error.getClass().getSimpleName());
        }
    }
}
