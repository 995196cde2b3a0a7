// What a programmer does with rhea, one scenario a function.
//
// Usage: node scenarios.js PLACE PORT; PLACE has node_modules with rhea.  Prints "PASS name" or "FAIL name: why" for each.
'use strict';

const path = require('path');
const rhea = require(path.join(process.argv[2], 'node_modules', 'rhea'));
const port = Number(process.argv[3]);
const WAIT = 10000;
let address;

function once(emitter, event, refusals = []) {
    return new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`no ${event} within ${WAIT} ms`)), WAIT);
        emitter.once(event, context => { clearTimeout(timer); resolve(context); });
        for (const refusal of refusals) {
            emitter.once(refusal, context => {
                clearTimeout(timer);
                reject(new Error(`${refusal}: ${(context.receiver || context.sender || context.connection).error}`));
            });
        }
    });
}

function same(expected, found) {
    const [left, right] = [JSON.stringify(expected), JSON.stringify(found)];
    if (left !== right) throw new Error(`expected ${left}, found ${right}`);
}

async function connect(options = {}) {
    const container = rhea.create_container();
    const connection = container.connect({ port, host: '127.0.0.1', reconnect: false, ...options });
    await once(connection, 'connection_open', ['disconnected', 'connection_error']);
    return connection;
}

async function sender(connection, target = address, options = {}) {
    const link = connection.open_sender({ target, ...options });
    await once(link, 'sendable', ['sender_error']);
    return link;
}

async function send(connection, ...messages) {
    const link = await sender(connection);
    for (const message of messages) {
        link.send(typeof message === 'string' ? { body: message } : message);
        await once(link, 'accepted', ['rejected', 'released']);
    }
    link.close();
}

async function receiver(connection, source = address, options = {}) {
    const link = connection.open_receiver({ source, credit_window: 0, ...options });
    link.seen = [];
    link.on('message', context => {
        link.seen.push(context);
        link.emit('seen');
    });
    await once(link, 'receiver_open', ['receiver_error']);
    return link;
}

async function seen(link, count) {
    while (link.seen.length < count) await once(link, 'seen');
    return link.seen.map(context => context.message.body);
}

async function drained(link, credit) {
    link.drain_credit();
    if (credit) link.add_credit(credit);
    await once(link, 'receiver_drained');
    return link.seen.map(context => context.message.body);
}

const scenarios = {
    async messages_go_in_and_out() {
        const connection = await connect();
        await send(connection, {
            body: 'grüße', message_id: 'ID:1', correlation_id: 7, subject: 's', durable: true, priority: 7, ttl: 60000,
            application_properties: { n: 1, s: 'x', b: true, d: 1.5 }, message_annotations: { 'x-opt-mine': 'kept' },
        });
        const link = await receiver(connection);
        link.add_credit(1);
        same(['grüße'], await seen(link, 1));
        const message = link.seen[0].message;
        same(['ID:1', 's', true, 7], [message.message_id, message.subject, message.durable, message.priority]);
        same({ n: 1, s: 'x', b: true, d: 1.5 }, message.application_properties);
        same('kept', message.message_annotations['x-opt-mine']);
        connection.close();
    },

    async bodies_of_every_kind() {
        const connection = await connect();
        const bodies = [
            rhea.message.data_section(Buffer.from([0, 1, 255])), rhea.message.sequence_section([1, 'two', null]),
            { a: [1, 2], b: null }, ['l', 1], null, 1.5,
        ];
        await send(connection, ...bodies.map(body => ({ body })));
        const link = await receiver(connection);
        link.add_credit(bodies.length);
        const found = await seen(link, bodies.length);
        same([0, 1, 255], [...found[0].content]);
        same([1, 'two', null], found[1].content);
        same(bodies.slice(2), found.slice(2));
        connection.close();
    },

    async credit_is_kept() {
        const connection = await connect();
        await send(connection, 'a', 'b', 'c');
        const link = await receiver(connection);
        link.add_credit(2);
        same(['a', 'b'], await seen(link, 2));
        link.add_credit(1);
        same(['a', 'b', 'c'], await seen(link, 3));
        connection.close();
    },

    async a_drain_is_answered() {
        const connection = await connect();
        const link = await receiver(connection);
        same([], await drained(link, 10));
        await send(connection, 'a', 'b');
        same(['a', 'b'], await drained(link, 10));
        connection.close();
    },

    async a_drain_is_answered_where_the_messages_use_up_the_credit() {
        const connection = await connect();
        await send(connection, 'a', 'b', 'c');
        const link = await receiver(connection);
        same(['a', 'b'], await drained(link, 2));
        same(['a', 'b', 'c'], await drained(link, 1));
        connection.close();
    },

    async a_drain_without_credit_is_answered() {
        const connection = await connect();
        const link = await receiver(connection);
        same([], await drained(link, 0));
        await send(connection, 'a');
        link.add_credit(1);
        await seen(link, 1);
        same(['a'], await drained(link, 0));
        connection.close();
    },

    async a_credit_window_goes_on() {
        const connection = await connect();
        const link = await receiver(connection, address, { credit_window: 10 });
        const sending = await sender(connection);
        const bodies = Array.from({ length: 500 }, (_, number) => `m${number}`);
        for (const body of bodies) {
            if (!sending.sendable()) await once(sending, 'sendable');
            sending.send({ body });
        }
        same(bodies, await seen(link, 500));
        connection.close();
    },

    async outcomes_mean_what_they_say() {
        const connection = await connect();
        await send(connection, 'released', 'modified', 'rejected', 'accepted');
        const link = await receiver(connection, address, { autoaccept: false });
        link.add_credit(4);
        await seen(link, 4);
        const [released, modified, rejected, accepted] = link.seen.map(context => context.delivery);
        link.add_credit(10);
        released.release();
        await seen(link, 5); // one by one: rhea sends dispositions that it gathers with the state of the first
        modified.modified({ delivery_failed: true });
        const bodies = await seen(link, 6);
        rejected.reject({ condition: 'my:reason', description: 'no' });
        accepted.accept();
        same(['released', 'modified'], bodies.slice(4));
        same([0, 1], link.seen.slice(4).map(context => context.message.delivery_count || 0));
        connection.close();
        const dead = await receiver(await connect(), {
            address: 'DLQ', filter: rhea.filter.selector(`JMS_HOLDFAST_DEAD_LETTER_QUEUE = '${address}'`),
        });
        dead.add_credit(1);
        same(['rejected'], await seen(dead, 1));
        dead.connection.close();
    },

    async presettled_messages_go_both_ways() {
        const connection = await connect();
        const sending = await sender(connection, address, { snd_settle_mode: 1 });
        sending.send({ body: 'a' });
        sending.send({ body: 'b' });
        const link = await receiver(connection, address, { snd_settle_mode: 1 });
        link.add_credit(2);
        same(['a', 'b'], await seen(link, 2));
        same([true, true], link.seen.map(context => context.delivery.remote_settled));
        connection.close();
    },

    async dynamic_nodes_carry_replies() {
        const connection = await connect();
        const replies = await receiver(connection, { dynamic: true });
        replies.add_credit(1);
        const reply_to = replies.source.address;
        await send(connection, { body: 'question', reply_to });
        const other = await connect();
        const asked = await receiver(other);
        asked.add_credit(1);
        await seen(asked, 1);
        const answering = await sender(other, asked.seen[0].message.reply_to);
        answering.send({ body: 'answer' });
        same(['answer'], await seen(replies, 1));
        connection.close();
        other.close();
    },

    async an_anonymous_sender_sends_where_the_message_says() {
        const connection = await connect();
        const sending = await sender(connection, {});
        sending.send({ to: address, body: 'a' });
        await once(sending, 'accepted', ['rejected']);
        const link = await receiver(connection);
        link.add_credit(1);
        same(['a'], await seen(link, 1));
        connection.close();
    },

    async a_selector_selects() {
        const connection = await connect();
        await send(connection, ...['red', 'blue', 'red'].map(
            colour => ({ body: colour, application_properties: { colour } })));
        const source = { address, filter: rhea.filter.selector("colour = 'red'") };
        same(['red', 'red'], await drained(await receiver(connection, source), 10));
        connection.close();
    },

    async an_invalid_selector_is_refused() {
        const connection = await connect();
        const link = connection.open_receiver({ source: { address, filter: rhea.filter.selector('a = = 1') } });
        const { receiver: refused } = await once(link, 'receiver_error');
        if (!refused.error.description.includes('column 5')) throw new Error(refused.error.description);
        await send(connection, 'the connection goes on');
        connection.close();
    },

    async a_browser_takes_nothing() {
        const connection = await connect();
        await send(connection, 'a', 'b');
        for (let round = 0; round < 2; round++) {
            const link = await receiver(connection, { address, distribution_mode: 'copy' });
            same(['a', 'b'], await drained(link, 10));
            link.close();
        }
        connection.close();
    },

    async a_topic_goes_to_all() {
        const connection = await connect();
        const topic = { address, capabilities: ['topic'] };
        const links = [await receiver(connection, topic), await receiver(connection, topic)];
        links.forEach(link => link.add_credit(5));
        const sending = await sender(connection, topic);
        sending.send({ body: 'a' });
        for (const link of links) same(['a'], await seen(link, 1));
        connection.close();
    },

    async a_durable_subscription_waits() {
        const source = { address, capabilities: ['topic'], durable: 2, expiry_policy: 'never' };
        const first = await connect({ container_id: address });
        const link = await receiver(first, source, { name: 'subscription' });
        link.detach();
        await once(link, 'receiver_close');
        const sending = await sender(first, { address, capabilities: ['topic'] });
        sending.send({ body: 'meanwhile' });
        await once(sending, 'accepted');
        first.close();
        await once(first, 'connection_close');
        const second = await connect({ container_id: address });
        const again = await receiver(second, source, { name: 'subscription' });
        again.add_credit(1);
        same(['meanwhile'], await seen(again, 1));
        second.close();
    },

    async large_messages_travel_in_pieces() {
        const connection = await connect({ max_frame_size: 16384 });
        const body = 'x'.repeat(3000000);
        await send(connection, body);
        const link = await receiver(connection);
        link.add_credit(1);
        const [found] = await seen(link, 1);
        if (found !== body) throw new Error(`${found.length} characters arrived`);
        connection.close();
    },

    async a_name_and_a_password_are_taken() {
        const connection = await connect({ username: 'anybody', password: 'anything' });
        await send(connection, 'a');
        connection.close();
    },
};

async function main() {
    for (const [name, scenario] of Object.entries(scenarios)) {
        address = `${name}-${process.pid}`;
        try {
            await scenario();
            console.log(`PASS ${name}`);
        } catch (error) {
            console.log(`FAIL ${name}: ${error.message}`);
        }
    }
    process.exit(0);
}

main();
