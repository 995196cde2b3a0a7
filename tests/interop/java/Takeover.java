import jakarta.jms.*;
import java.util.*;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Sends and receives numbered messages while the servers of a group come and go: URL, queue, how many. */
public class Takeover {
    public static void main(String[] arguments) throws Exception {
        String queue = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        JmsConnectionFactory factory = new JmsConnectionFactory(arguments[0]);
        Set<Integer> seen = new HashSet<>();
        int again = 0;
        try (JMSContext context = factory.createContext(JMSContext.AUTO_ACKNOWLEDGE)) {
            JMSConsumer consumer = context.createConsumer(context.createQueue(queue));
            Thread sender = new Thread(() -> {
                try (JMSContext own = factory.createContext()) {
                    JMSProducer producer = own.createProducer();
                    for (int number = 0; number < count; number++) {
                        producer.send(own.createQueue(queue), Integer.toString(number));
                        if (number % 100 == 99) System.out.println("SENT " + (number + 1));
                        Thread.sleep(5);
                    }
                } catch (InterruptedException error) {
                    throw new RuntimeException(error);
                }
            });
            sender.start();
            while (seen.size() < count) {
                String text = consumer.receiveBody(String.class, 30_000);
                if (text == null) break;
                if (!seen.add(Integer.parseInt(text))) again++;
            }
            sender.join();
        }
        System.out.println("RECEIVED " + seen.size() + " AGAIN " + again);
    }
}
