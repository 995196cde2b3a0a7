#!/bin/sh
# RabbitMQ 4.0.5 confirms a browser's source and then delivers its messages for good.
#
# Guess, written before the run: AMQP 1.0 (part 3, 3.5.3) has the sender answer with the source that is in place, so that
# a receiver can compare.  Here the source is sent back as it was asked for: the distribution mode "copy" and a filter of
# JMS selectors come back confirmed, none is applied, and after the "browser" the queue is empty.
. "$(dirname "$0")/common.sh"
rhea
rabbitmq_4
cat >client.js <<'EOF'
const rhea = require('rhea');
const connection = rhea.connect({ port: Number(process.argv[2]), host: '127.0.0.1', username: 'guest', password: 'guest',
    reconnect: false });
const filter = { 'jms-selector': rhea.types.wrap_described("colour = 'red'", 0x468c00000004) };
connection.open_sender('/queue/q').once('sendable', context => {
    for (const colour of ['red', 'blue']) {
        context.sender.send({ body: colour, application_properties: { colour } });
    }
    setTimeout(browse, 500);
});
function browse() {
    const browser = connection.open_receiver({ source: { address: '/queue/q', distribution_mode: 'copy', filter } });
    browser.once('receiver_open', () => {
        const source = browser.remote.attach.source;
        console.log(`confirmed: ${source.distribution_mode}, ${source.filter['jms-selector'].value}`);
    });
    browser.on('message', context => console.log(`browsed: ${context.message.body}`));
    setTimeout(() => { browser.close(); browser.once('receiver_close', take); }, 1000);
}
function take() {
    let left = 0;
    connection.open_receiver('/queue/q').on('message', () => { left += 1; });
    setTimeout(() => { console.log(`left in the queue: ${left}`); connection.close(); }, 1000);
}
EOF
node client.js "$PORT" >seen
expect seen <<'EOF'
confirmed: copy, colour = 'red'
browsed: red
browsed: blue
left in the queue: 0
EOF
