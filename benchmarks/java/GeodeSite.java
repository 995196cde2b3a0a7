import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import org.apache.geode.cache.Cache;
import org.apache.geode.cache.CacheFactory;
import org.apache.geode.cache.Region;
import org.apache.geode.cache.RegionFactory;
import org.apache.geode.cache.RegionShortcut;
import org.apache.geode.cache.server.CacheServer;
import org.apache.geode.cache.wan.GatewayReceiver;
import org.apache.geode.cache.wan.GatewaySender;
import org.apache.geode.cache.wan.GatewaySenderFactory;

/**
 * A site of Geode on loopback: one member with a locator, a cache server and the replicated regions {@code alone},
 * {@code sent} and {@code grouped}. Site 1 has serial gateway senders to site 2 for the last two, with their default
 * sizes; that of {@code grouped} groups transaction events. Site 2 has the receiver.
 *
 * <p>Arguments: the site, the ports of its locator and of the other site's, and {@code memory} or {@code disk}: where it
 * stores what it has, in the directory in which it works. It says the port of its server and its version, then does
 * what the lines of its input say:
 *
 * <ul>
 *   <li>{@code clear}: empties its regions;
 *   <li>{@code count REGION}: answers the number of keys;
 *   <li>{@code await REGION COUNT}: waits until there are so many;
 *   <li>{@code pause SENDER}, {@code resume SENDER}.
 * </ul>
 *
 * Each is answered with a line that begins with {@code done}. The program ends with its input.
 */
public class GeodeSite {
    private static final String[] REGIONS = {"alone", "sent", "grouped"};
    private static final int LOOK_MILLIS = 5;

    private final Cache cache;

    private GeodeSite(Cache cache) {
        this.cache = cache;
    }

    public static void main(String[] arguments) {
        int status = 1;
        try {
            int site = Integer.parseInt(arguments[0]);
            Cache cache = new CacheFactory()
                .set("mcast-port", "0")
                .set("bind-address", "127.0.0.1")
                .set("distributed-system-id", arguments[0])
                .set("start-locator", "127.0.0.1[" + arguments[1] + "],hostname-for-clients=127.0.0.1")
                .set("locators", "127.0.0.1[" + arguments[1] + "]")
                .set("remote-locators", "127.0.0.1[" + arguments[2] + "]")
                .set("enable-cluster-configuration", "false")
                .set("use-cluster-configuration", "false")
                .set("jmx-manager", "false")
                .set("log-level", "error")
                .create();
            GeodeSite serving = new GeodeSite(cache);
            int port = serving.start(site, arguments[3].equals("disk"));
            System.out.println("done " + port + " " + CacheFactory.getVersion());
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                System.out.println("done " + serving.execute(line.split(" ")));
            }
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(status); // threads of Geode would keep it alive
    }

    private int start(int site, boolean isOnDisk) throws Exception {
        if (isOnDisk) {
            cache.createDiskStoreFactory().setDiskDirs(new File[] {new File(".")}).create("disk");
        }
        for (String name : REGIONS) {
            RegionFactory<String, byte[]> factory = cache.createRegionFactory(
                isOnDisk ? RegionShortcut.REPLICATE_PERSISTENT : RegionShortcut.REPLICATE);
            if (isOnDisk) {
                factory.setDiskStoreName("disk").setDiskSynchronous(true);
            }
            if (site == 1 && !name.equals("alone")) {
                createSender(name, isOnDisk);
                factory.addGatewaySenderId(name);
            }
            factory.create(name);
        }
        if (site == 2) {
            GatewayReceiver receiver = cache.createGatewayReceiverFactory()
                .setBindAddress("127.0.0.1")
                .setHostnameForSenders("127.0.0.1")
                .create();
            receiver.start();
        }
        CacheServer server = cache.addCacheServer();
        server.setPort(0);
        server.setBindAddress("127.0.0.1");
        server.setHostnameForClients("127.0.0.1");
        server.start();
        return server.getPort();
    }

    private void createSender(String name, boolean isOnDisk) {
        GatewaySenderFactory factory = cache.createGatewaySenderFactory();
        if (isOnDisk) {
            factory.setPersistenceEnabled(true).setDiskStoreName("disk").setDiskSynchronous(true);
        }
        if (name.equals("grouped")) {
            factory.setDispatcherThreads(1).setGroupTransactionEvents(true); // it can group with one thread only
        }
        factory.create(name, 2);
    }

    private int execute(String[] words) throws Exception {
        switch (words[0]) {
            case "clear":
                for (String name : REGIONS) {
                    cache.getRegion(name).clear();
                }
                return 0;
            case "count":
                return cache.getRegion(words[1]).size();
            case "await":
                Region<String, byte[]> region = cache.getRegion(words[1]);
                while (region.size() < Integer.parseInt(words[2])) {
                    Thread.sleep(LOOK_MILLIS);
                }
                return 0;
            case "pause":
                GatewaySender sender = cache.getGatewaySender(words[1]);
                sender.pause();
                // What is put within the time of a batch after that still travels.
                Thread.sleep(2L * sender.getBatchTimeInterval());
                return 0;
            case "resume":
                cache.getGatewaySender(words[1]).resume();
                return 0;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }
}
