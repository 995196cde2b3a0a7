import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.geode.cache.CacheTransactionManager;
import org.apache.geode.cache.Region;
import org.apache.geode.cache.client.ClientCache;
import org.apache.geode.cache.client.ClientCacheFactory;
import org.apache.geode.cache.client.ClientRegionShortcut;

/**
 * A client of a Geode server that puts new keys, as the lines of its input say:
 *
 * <ul>
 *   <li>{@code put REGION COUNT BYTES}: values of so many bytes, one at a time;
 *   <li>{@code commit REGION COUNT BYTES EACH}: in transactions of so many puts;
 *   <li>{@code put-all REGION COUNT BYTES EACH}: in batches of so many values.
 * </ul>
 *
 * Each is answered with a line that has {@code done} and the seconds. Its argument is the port of the server. The
 * program ends with its input.
 */
public class GeodePutter {
    public static void main(String[] arguments) {
        int status = 1;
        try {
            ClientCache cache = new ClientCacheFactory()
                .set("log-level", "error")
                .addPoolServer("127.0.0.1", Integer.parseInt(arguments[0]))
                .create();
            Map<String, Region<String, byte[]>> regions = new HashMap<>();
            System.out.println("done");
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ");
                Region<String, byte[]> region = regions.computeIfAbsent(words[1],
                    name -> cache.<String, byte[]>createClientRegionFactory(ClientRegionShortcut.PROXY).create(name));
                int count = Integer.parseInt(words[2]);
                byte[] value = new byte[Integer.parseInt(words[3])];
                long started = System.nanoTime();
                switch (words[0]) {
                    case "put":
                        put(region, 0, count, value);
                        break;
                    case "commit":
                        commit(cache.getCacheTransactionManager(), region, count, value, Integer.parseInt(words[4]));
                        break;
                    case "put-all":
                        putAll(region, count, value, Integer.parseInt(words[4]));
                        break;
                    default:
                        throw new IllegalArgumentException(words[0]);
                }
                System.out.println("done " + (System.nanoTime() - started) / 1e9);
            }
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(status); // threads of Geode would keep it alive
    }

    private static void put(Region<String, byte[]> region, int first, int end, byte[] value) {
        for (int number = first; number < end; number++) {
            region.put("key " + number, value);
        }
    }

    private static void commit(CacheTransactionManager transactions, Region<String, byte[]> region, int count,
        byte[] value, int each) {
        for (int first = 0; first < count; first += each) {
            transactions.begin();
            put(region, first, Math.min(first + each, count), value);
            transactions.commit();
        }
    }

    private static void putAll(Region<String, byte[]> region, int count, byte[] value, int each) {
        for (int first = 0; first < count; first += each) {
            Map<String, byte[]> values = new LinkedHashMap<>();
            for (int number = first; number < Math.min(first + each, count); number++) {
                values.put("key " + number, value);
            }
            region.putAll(values);
        }
    }
}
