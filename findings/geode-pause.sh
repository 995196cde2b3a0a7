#!/bin/sh
# Apache Geode 1.15.1 still sends what is put right behind GatewaySender.pause().
#
# Guess, written before the run: pause() only sets a flag, which the thread that sends reads ahead of a batch.  It waits
# for the events of that batch already, for up to batch-time-interval (1 s), and sends those that come meanwhile.  What
# is put 3 s later waits.
. "$(dirname "$0")/common.sh"
cat >pom.xml <<'EOF'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>finding</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.geode</groupId><artifactId>geode-core</artifactId><version>1.15.1</version></dependency>
    <dependency><groupId>org.apache.geode</groupId><artifactId>geode-wan</artifactId><version>1.15.1</version></dependency>
  </dependencies>
</project>
EOF
cat >Site.java <<'EOF'
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.geode.cache.Cache;
import org.apache.geode.cache.CacheFactory;
import org.apache.geode.cache.EntryEvent;
import org.apache.geode.cache.Region;
import org.apache.geode.cache.RegionShortcut;
import org.apache.geode.cache.util.CacheListenerAdapter;
import org.apache.geode.cache.wan.GatewaySender;

public class Site {
    static final int TURNS = 8;

    public static void main(String[] arguments) throws Exception {
        String site = arguments[0];
        Cache cache = new CacheFactory()
            .set("bind-address", "127.0.0.1")
            .set("distributed-system-id", site)
            .set("start-locator", "127.0.0.1[" + arguments[1] + "],hostname-for-clients=127.0.0.1")
            .set("locators", "127.0.0.1[" + arguments[1] + "]")
            .set("remote-locators", "127.0.0.1[" + arguments[2] + "]")
            .set("enable-cluster-configuration", "false")
            .set("use-cluster-configuration", "false")
            .set("jmx-manager", "false")
            .set("log-level", "error")
            .create();
        if (site.equals("2")) {
            cache.<String, String>createRegionFactory(RegionShortcut.REPLICATE)
                .addCacheListener(new CacheListenerAdapter<String, String>() {
                    @Override
                    public void afterCreate(EntryEvent<String, String> event) {
                        System.out.println("arrived: " + event.getKey());
                    }
                })
                .create("region");
            cache.createGatewayReceiverFactory().setBindAddress("127.0.0.1").setHostnameForSenders("127.0.0.1").create()
                .start();
            System.out.println("ready");
            Thread.sleep(600_000);
        }
        GatewaySender sender = cache.createGatewaySenderFactory().create("sender", 2);
        Region<String, String> region = cache.<String, String>createRegionFactory(RegionShortcut.REPLICATE)
            .addGatewaySenderId("sender")
            .create("region");
        Path log = Path.of(arguments[3]);
        int behind = 0;
        int later = 0;
        for (int turn = 0; turn < TURNS; turn++) {
            region.put("running " + turn, "");
            while (!arrived(log, "running " + turn)) {
                Thread.sleep(10);
            }
            sender.pause();
            if (!sender.isPaused()) {
                throw new IllegalStateException("it is not paused");
            }
            region.put("behind " + turn, "");
            Thread.sleep(3000);
            region.put("later " + turn, "");
            Thread.sleep(3000);
            behind += arrived(log, "behind " + turn) ? 1 : 0;
            later += arrived(log, "later " + turn) ? 1 : 0;
            sender.resume();
        }
        System.out.println("put right behind pause(): " + behind + " of " + TURNS + " arrive while it is paused");
        System.out.println("put 3 s behind pause(): " + later + " of " + TURNS + " arrive while it is paused");
        Runtime.getRuntime().halt(0);
    }

    static boolean arrived(Path log, String key) throws Exception {
        return Files.readAllLines(log).contains("arrived: " + key);
    }
}
EOF
mvn -q -B -Dstyle.color=never dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=lib
javac -nowarn -cp 'lib/*' Site.java
HERE_PORT=$(free_port)
THERE_PORT=$(free_port)
cat >site.sh <<'EOF'
exec java -Xmx256m --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED \
    --add-opens=java.base/sun.nio.ch=ALL-UNNAMED -cp '../lib/*:..' Site "$@"
EOF
mkdir here there # each for the files of a site
background there.log ready sh -c 'cd there && . ../site.sh' site 2 "$THERE_PORT" "$HERE_PORT"
(cd here && sh ../site.sh 1 "$HERE_PORT" "$THERE_PORT" ../there.log) >site.log 2>&1 || { tail -20 site.log; exit 1; }
grep 'behind pause()' site.log >output
expect output <<'EOF'
put right behind pause(): 8 of 8 arrive while it is paused
put 3 s behind pause(): 0 of 8 arrive while it is paused
EOF
