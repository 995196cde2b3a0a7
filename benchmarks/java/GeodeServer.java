import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.geode.cache.Cache;
import org.apache.geode.cache.CacheFactory;
import org.apache.geode.cache.RegionShortcut;
import org.apache.geode.cache.server.CacheServer;

/**
 * A Geode server on loopback with one replicated region in memory. It says its port and version, then answers each line
 * with the bytes of its heap after a collection. It ends with its input.
 */
public class GeodeServer {
    public static void main(String[] arguments) {
        int status = 1;
        try {
            serve();
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(status); // threads of Geode would keep it alive
    }

    private static void serve() throws Exception {
        Cache cache = new CacheFactory()
            .set("mcast-port", "0")
            .set("locators", "")
            .set("bind-address", "127.0.0.1")
            .set("log-level", "error")
            .create();
        cache.<String, byte[]>createRegionFactory(RegionShortcut.REPLICATE).create("quotes");
        CacheServer server = cache.addCacheServer();
        server.setPort(0);
        server.setBindAddress("127.0.0.1");
        server.start();
        System.out.println("done " + server.getPort() + " " + CacheFactory.getVersion());
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            System.gc();
            Runtime runtime = Runtime.getRuntime();
            System.out.println("done " + (runtime.totalMemory() - runtime.freeMemory()));
        }
    }
}
