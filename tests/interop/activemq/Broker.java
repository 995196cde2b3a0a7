import org.apache.activemq.broker.BrokerService;

/** Apache ActiveMQ Classic, in memory, with AMQP alone; the arguments are its port and a directory. */
public final class Broker {
    public static void main(String[] arguments) throws Exception {
        BrokerService broker = new BrokerService();
        broker.setPersistent(false);
        broker.setUseJmx(false);
        broker.setSchedulerSupport(true); // delivery delay
        broker.setDataDirectory(arguments[1]);
        broker.addConnector("amqp://127.0.0.1:" + arguments[0] + "?transport.transformer=jms");
        broker.start();
        broker.waitUntilStarted();
        System.out.println("ready");
        broker.waitUntilStopped();
    }
}
