#!/bin/sh
# rhea 3.0.5 sends NaN as null.
#
# Guess, written before the run: a JavaScript number that is no integer becomes an AMQP double, which has a NaN (IEEE 754),
# and infinities travel.  NaN is taken for "no value" before its type is looked at, so a receiver sees a missing value
# where the sender measured "not a number".
. "$(dirname "$0")/common.sh"
rhea
cat >client.js <<'EOF'
const rhea = require('rhea');
for (const value of [1.5, Infinity, NaN]) {
    const { body, application_properties } = rhea.message.decode(
        rhea.message.encode({ body: value, application_properties: { value } }));
    console.log(`${value}: body ${body}, property ${application_properties.value}`);
}
const encoded = rhea.message.encode({ body: rhea.types.wrap_double(NaN) });
console.log(`wrapped as a double: ${rhea.message.decode(encoded).body}`);
EOF
node client.js >seen
expect seen <<'EOF'
1.5: body 1.5, property 1.5
Infinity: body Infinity, property Infinity
NaN: body null, property null
wrapped as a double: NaN
EOF
