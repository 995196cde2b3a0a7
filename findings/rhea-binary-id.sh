#!/bin/sh
# rhea 3.0.5 sends a binary message id as a UUID, whatever its length.
#
# Guess, written before the run: AMQP 1.0 (part 3, 3.2.11 to 3.2.14) has four types of message ids: ulong, uuid, binary
# and string.  A Buffer becomes binary, unless it is 16 bytes long, as a hash or another system's id may be: that one
# becomes a UUID, and a receiver that compares it with the bytes does not find it.
#
# Seen: every Buffer becomes a UUID, and one of another length than 16 bytes makes the message unreadable.
. "$(dirname "$0")/common.sh"
rhea
cat >client.js <<'EOF'
const rhea = require('rhea');
const codes = { 0x98: 'uuid', 0xa0: 'binary', 0xa1: 'string' };
for (const length of [15, 16, 17]) {
    const encoded = rhea.message.encode({ message_id: Buffer.alloc(length, 7), body: '' });
    const list = encoded.indexOf(Buffer.from([0x00, 0x53, 0x73])) + 3; // of the properties: code, size, count, the id
    const id = list + (encoded[list] === 0xc0 ? 3 : 9);
    console.log(`${length} bytes: ${codes[encoded[id]]}`);
}
EOF
node client.js >seen
expect seen <<'EOF'
15 bytes: uuid
16 bytes: uuid
17 bytes: uuid
EOF
