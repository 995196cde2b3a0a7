#!/bin/sh
# Qpid Broker-J 10.1.0 delivers a message that was rejected again, to the same receiver and without end.
#
# Guess, written before the run: AMQP 1.0 (part 3, 3.4.3) says of rejected that the message "is invalid and
# unprocessable", and other brokers drop it or make it a dead letter at once.  Here it counts as a failed delivery, and a
# queue has no limit of them unless somebody sets one.
. "$(dirname "$0")/common.sh"
rhea
broker_j
cat >client.js <<'EOF'
const rhea = require('rhea');
const connection = rhea.connect({ port: Number(process.argv[2]), host: '127.0.0.1', reconnect: false });
connection.open_sender('q').once('sendable', context => context.sender.send({ body: 'bad' }));
connection.open_receiver({ source: 'q', autoaccept: false });
let rejections = 0;
rhea.on('message', context => {
    if (rejections === 1000) {
        console.log(`rejected ${rejections} times, delivery-count ${context.message.delivery_count}`);
        context.delivery.accept();
        return connection.close();
    }
    rejections += 1;
    context.delivery.reject({ condition: 'amqp:decode-error', description: 'no receiver can read it' });
});
EOF
timeout 60 node client.js "$PORT" >seen
expect seen <<'EOF'
rejected 1000 times, delivery-count 1000
EOF
