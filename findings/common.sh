# What the scripts of this folder share.  Each installs pinned public packages in a temporary folder, shows one behaviour
# of them with valid input and without Holdfast, and fails where it is not what was seen.
set -eu
HERE=$(mktemp -d)
RUNNING=
cleanup() {
    for pid in $RUNNING; do kill -9 "-$pid" 2>/dev/null || true; done
    rm -rf "$HERE"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
cd "$HERE"

# Run a program in the background until the script ends: log, the text for which to wait, command.
background() {
    log=$1 ready=$2
    shift 2
    setsid "$@" >"$log" 2>&1 </dev/null &
    RUNNING="$RUNNING $!"
    for _ in $(seq 600); do
        if grep -q "$ready" "$log"; then return; fi
        sleep 0.1
    done
    echo "no '$ready' of: $*" >&2
    tail -20 "$log" >&2
    exit 1
}

# Fail where the output is not what was seen: file.  The expected text comes in by the standard input.
expect() {
    cat >expected
    if diff -u expected "$1"; then
        echo "as seen:"
        sed 's/^/    /' "$1"
    else
        echo "NO LONGER AS SEEN (- seen, + now)" >&2
        exit 1
    fi
}

free_port() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

rhea() { npm install --silent --no-audit --no-fund --no-package-lock rhea@3.0.5 >npm.log 2>&1 || { cat npm.log; exit 1; }; }

proton() {
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check python-qpid-proton==0.40.0
}

# Run run.py of this folder with PySpark 4.3.0, which needs Java 17; its output is in the file output.
pyspark() {
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
    PYSPARK_PYTHON=$HERE/venv/bin/python PYTHONPATH=$HERE venv/bin/python run.py >output 2>spark.log || { tail -20 spark.log; exit 1; }
}

# Qpid Broker-J 10.1.0 on $PORT, in memory; anybody may log in, and the queue "q" exists.
broker_j() {
    mvn -q -B -Dstyle.color=never dependency:copy -Dartifact=org.apache.qpid:apache-qpid-broker-j:10.1.0:tar.gz:bin -DoutputDirectory=.
    tar -xzf apache-qpid-broker-j-10.1.0-bin.tar.gz
    PORT=$(free_port)
    cat >initial.json <<EOF
{"name": "finding", "modelVersion": "9.0",
 "brokerloggers": [{"name": "console", "type": "Console", "brokerloginclusionrules":
   [{"name": "all", "type": "NameAndLevel", "level": "WARN", "loggerName": "ROOT"}]}],
 "authenticationproviders": [{"name": "anonymous", "type": "Anonymous"}],
 "ports": [{"name": "AMQP", "type": "AMQP", "port": "$PORT", "bindingAddress": "127.0.0.1",
   "authenticationProvider": "anonymous", "virtualhostaliases": [{"name": "default", "type": "defaultAlias"}]}],
 "virtualhostnodes": [{"name": "default", "type": "Memory", "defaultVirtualHostNode": "true",
   "virtualHostInitialConfiguration": "{\"type\": \"Memory\", \"queues\": [{\"name\": \"q\"}]}"}]}
EOF
    mkdir work
    QPID_WORK=$HERE/work QPID_JAVA_MEM=-Xmx256m background broker.log BRK-1004 qpid-broker/10.1.0/bin/qpid-server -icp "$HERE/initial.json"
}

# Build main.go of this folder with go-amqp 1.7.0, as ./client.
go_amqp() {
    { go mod init finding && go get github.com/Azure/go-amqp@v1.7.0 && go build -o client .; } >go.log 2>&1 || { cat go.log; exit 1; }
}

# RabbitMQ 4.0.5 on $PORT, from Debian 13's packages, unpacked into a folder; anybody may log in.  Needs root and apt.
rabbitmq_4() {
    source=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian|Debian|//p' | head -1)
    mkdir -p lists/partial archives/partial root
    : >status
    echo "deb $source trixie main" >sources
    apt="apt-get -q -y -oDir::Etc::sourcelist=$HERE/sources -oDir::Etc::sourceparts=/dev/null -oDir::State::lists=$HERE/lists
        -oDir::State::status=$HERE/status -oDir::Cache=$HERE -oDir::Cache::archives=$HERE/archives -oAPT::Install-Recommends=false"
    { $apt update && $apt --download-only install 'rabbitmq-server=4.0.5*' base-files coreutils dash findutils grep hostname mawk sed; } >apt.log 2>&1 ||
        { tail -5 apt.log; exit 1; }
    for package in archives/*.deb; do dpkg -x "$package" root; done
    ln -s mawk root/usr/bin/awk
    PORT=$(free_port)
    mkdir data root/data
    printf '[].\n' >data/plugins
    printf 'listeners.tcp.1 = 127.0.0.1:%s\nanonymous_login_user = guest\n' "$PORT" >data/rabbitmq.conf
    cat >run.sh <<EOF
set -eu
for each in dev proc sys; do mount --rbind /\$each root/\$each; done
mount --bind data root/data
cp /etc/hosts /etc/passwd root/etc/
export HOME=/data RABBITMQ_NODENAME=finding$PORT@localhost RABBITMQ_MNESIA_BASE=/data/mnesia RABBITMQ_LOGS=-
export RABBITMQ_CONFIG_FILE=/data/rabbitmq.conf RABBITMQ_ENABLED_PLUGINS_FILE=/data/plugins
export RABBITMQ_DIST_PORT=$(free_port) ERL_EPMD_PORT=$(free_port) ERL_EPMD_ADDRESS=127.0.0.1
exec chroot root sh -c 'epmd >/dev/null 2>&1 & until epmd -names >/dev/null 2>&1; do sleep 0.1; done; exec /usr/lib/rabbitmq/bin/rabbitmq-server'
EOF
    background rabbitmq.log "Server startup complete" unshare --mount sh run.sh
}
