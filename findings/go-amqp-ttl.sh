#!/bin/sh
# go-amqp 1.7.0: a time to live of 50 days becomes one of 7 hours.
#
# Guess, written before the run: the header's ttl is 32 bits of milliseconds (AMQP 1.0, part 3, 3.2.1), up to 49.7 days.
# A longer time.Duration is neither refused nor cut to the longest one: its upper bits are lost, so the message expires
# far too early.
. "$(dirname "$0")/common.sh"
rhea
PORT=$(free_port)
cat >peer.js <<'EOF'
const rhea = require('rhea');
rhea.on('receiver_open', context => context.receiver.set_target(context.receiver.target));
rhea.on('message', context => console.log(`${context.message.body.content}: ttl ${context.message.ttl} ms`));
rhea.listen({ port: Number(process.argv[2]), host: '127.0.0.1' }).on('listening', () => console.log('listening'));
EOF
background peer.log listening node peer.js "$PORT"
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

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
	for _, days := range []int{49, 50} {
		message := amqp.NewMessage([]byte(fmt.Sprintf("%d days", days)))
		message.Header = &amqp.MessageHeader{TTL: time.Duration(days) * 24 * time.Hour}
		if err := sender.Send(ctx, message, nil); err != nil {
			panic(err)
		}
	}
}
EOF
go_amqp
./client "$PORT"
grep ttl peer.log >seen
expect seen <<'EOF'
49 days: ttl 4233600000 ms
50 days: ttl 25032704 ms
EOF
