#!/bin/sh
# go-amqp 1.7.0: Sender.Send returns nil for a message that the peer has released.
#
# Guess, written before the run: AMQP 1.0 (part 3, 3.4.4) says that a released message "has not been (and will not be)
# acted upon"; RabbitMQ 4 answers so where no queue takes a message.  Send returns an error for "rejected" only, so its
# caller believes that the message was stored.
. "$(dirname "$0")/common.sh"
rhea
PORT=$(free_port)
cat >peer.js <<'EOF'
const rhea = require('rhea');
rhea.on('receiver_open', context => context.receiver.set_target(context.receiver.target));
rhea.on('message', context => {
    const outcome = context.message.body.content.toString();
    if (outcome === 'released') context.delivery.release();
    else if (outcome === 'modified') context.delivery.modified({ delivery_failed: true, undeliverable_here: true });
    else context.delivery.reject({ condition: 'amqp:not-allowed', description: 'no' });
});
rhea.options.receiver_options = { autoaccept: false };
rhea.listen({ port: Number(process.argv[2]), host: '127.0.0.1' }).on('listening', () => console.log('listening'));
EOF
background peer.log listening node peer.js "$PORT"
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/Azure/go-amqp"
)

func main() {
	ctx := context.Background()
	connection, err := amqp.Dial(ctx, "amqp://127.0.0.1:"+os.Args[1], nil)
	if err != nil {
		panic(err)
	}
	session, err := connection.NewSession(ctx, nil)
	if err != nil {
		panic(err)
	}
	sender, err := session.NewSender(ctx, "q", nil)
	if err != nil {
		panic(err)
	}
	for _, outcome := range []string{"released", "modified", "rejected"} {
		err := sender.Send(ctx, amqp.NewMessage([]byte(outcome)), nil)
		fmt.Printf("%s: error %t\n", outcome, err != nil)
	}
}
EOF
go_amqp
./client "$PORT" >seen
expect seen <<'EOF'
released: error false
modified: error false
rejected: error true
EOF
