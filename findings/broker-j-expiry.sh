#!/bin/sh
# Qpid Broker-J 10.1.0 delivers a message whose absolute-expiry-time is over.
#
# Guess, written before the run: AMQP 1.0 (part 3, 3.2.4) calls absolute-expiry-time "an absolute time when this message
# is considered to be expired".  The broker applies the header's ttl; this property it only passes on.
. "$(dirname "$0")/common.sh"
rhea
broker_j
cat >client.js <<'EOF'
const rhea = require('rhea');
const connection = rhea.connect({ port: Number(process.argv[2]), host: '127.0.0.1', reconnect: false });
const late = Date.now() - 3600000;
connection.open_sender('q').once('sendable', context => {
    context.sender.send({ body: 'ttl', ttl: 1 });
    context.sender.send({ body: 'absolute-expiry-time', absolute_expiry_time: late });
    context.sender.send({ body: 'neither' });
    setTimeout(() => connection.open_receiver('q'), 500);
});
rhea.on('message', context => {
    const { body, absolute_expiry_time } = context.message;
    console.log(`delivered: ${body}${absolute_expiry_time ? ', expired an hour ago' : ''}`);
    if (body === 'neither') connection.close();
});
EOF
node client.js "$PORT" >seen
expect seen <<'EOF'
delivered: absolute-expiry-time, expired an hour ago
delivered: neither
EOF
