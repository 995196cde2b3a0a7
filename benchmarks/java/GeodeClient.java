import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.geode.cache.EntryEvent;
import org.apache.geode.cache.InterestResultPolicy;
import org.apache.geode.cache.Region;
import org.apache.geode.cache.RegionEvent;
import org.apache.geode.cache.client.ClientCache;
import org.apache.geode.cache.client.ClientCacheFactory;
import org.apache.geode.cache.client.ClientRegionShortcut;
import org.apache.geode.cache.util.CacheListenerAdapter;

/**
 * Clients of a Geode server, one after the other, as the lines of its input say:
 *
 * <ul>
 *   <li>{@code connect}: a client that puts;
 *   <li>{@code connect ID}: a durable client, which wants all keys;
 *   <li>{@code put COUNT BATCH KEYS BYTES}: puts, in batches, of values of so many bytes;
 *   <li>{@code ready}: the durable client is told what waits for it, and answers how many events that was;
 *   <li>{@code leave}: ends the connection; what a durable client wants is queued from then on;
 *   <li>{@code end}: ends the connection, and the server forgets the client.
 * </ul>
 *
 * Each is answered with a line that begins with {@code done}. The program ends with its input.
 */
public class GeodeClient {
    private static final int WAIT_SECONDS = 600;

    private final int port;
    private final AtomicInteger events = new AtomicInteger();
    private CountDownLatch live;
    private ClientCache cache;
    private Region<String, byte[]> region;

    private GeodeClient(int port) {
        this.port = port;
    }

    public static void main(String[] arguments) {
        int status = 1;
        try {
            GeodeClient client = new GeodeClient(Integer.parseInt(arguments[0]));
            System.out.println("done");
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                System.out.println("done " + client.execute(line.split(" ")));
            }
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(status); // threads of Geode would keep it alive
    }

    private int execute(String[] words) throws Exception {
        switch (words[0]) {
            case "connect":
                connect(words.length > 1 ? words[1] : null);
                return 0;
            case "put":
                put(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]),
                    Integer.parseInt(words[4]));
                return 0;
            case "ready":
                cache.readyForEvents();
                if (!live.await(WAIT_SECONDS, TimeUnit.SECONDS)) {
                    throw new IllegalStateException("not all events were told");
                }
                return events.get();
            case "leave":
                cache.close(true);
                return 0;
            case "end":
                cache.close(false);
                return 0;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private void connect(String id) {
        ClientCacheFactory factory = new ClientCacheFactory()
            .set("log-level", "error")
            .addPoolServer("127.0.0.1", port)
            .setPoolReadTimeout(WAIT_SECONDS * 1000);
        if (id == null) {
            cache = factory.create();
            region = cache.<String, byte[]>createClientRegionFactory(ClientRegionShortcut.PROXY).create("quotes");
            return;
        }
        cache = factory
            .set("durable-client-id", id)
            .set("durable-client-timeout", "36000")
            .setPoolSubscriptionEnabled(true)
            .create();
        events.set(0);
        live = new CountDownLatch(1);
        region = cache.<String, byte[]>createClientRegionFactory(ClientRegionShortcut.CACHING_PROXY)
            .addCacheListener(new Counter(events, live))
            .create("quotes");
        region.registerInterestForAllKeys(InterestResultPolicy.NONE, true);
    }

    private void put(int count, int batch, int keys, int bytes) {
        byte[] value = new byte[bytes];
        for (int first = 0; first < count; first += batch) {
            Map<String, byte[]> values = new LinkedHashMap<>();
            for (int number = first; number < Math.min(first + batch, count); number++) {
                values.put("key " + number % keys, value);
            }
            region.putAll(values);
        }
    }

    /** Counts the events of a client until all that waited have come. */
    private static final class Counter extends CacheListenerAdapter<String, byte[]> {
        private final AtomicInteger events;
        private final CountDownLatch live;

        Counter(AtomicInteger events, CountDownLatch live) {
            this.events = events;
            this.live = live;
        }

        @Override
        public void afterCreate(EntryEvent<String, byte[]> event) {
            events.incrementAndGet();
        }

        @Override
        public void afterUpdate(EntryEvent<String, byte[]> event) {
            events.incrementAndGet();
        }

        @Override
        public void afterRegionLive(RegionEvent<String, byte[]> event) {
            live.countDown();
        }
    }
}
