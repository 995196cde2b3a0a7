#!/bin/sh
# python-qpid-proton 0.40.0: a BlockingReceiver with credit=10 draws the whole queue into memory.
#
# Guess, written before the run: "credit" reads as a window: at most ten messages that the program has not taken yet.  The
# receiver gives one more credit for each message that arrives, not for each that receive() returns, so while the
# program waits for anything else on the connection all 1,000 messages come, and no other receiver gets any.
. "$(dirname "$0")/common.sh"
proton
PORT=$(free_port)
cat >sender.py <<'EOF'
import sys

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container


class Queue(MessagingHandler):
    sent = 0

    def on_start(self, event):
        event.container.listen(f"127.0.0.1:{sys.argv[1]}")
        print("listening", flush=True)

    def on_link_opening(self, event):
        event.link.source.address = event.link.remote_source.address

    def on_sendable(self, event):
        while event.sender.credit and self.sent < 1000:
            event.sender.send(Message(body=f"m{self.sent}"))
            self.sent += 1


Container(Queue()).run()
EOF
background sender.log listening venv/bin/python sender.py "$PORT"
cat >client.py <<'EOF'
import sys

from proton import Timeout
from proton.utils import BlockingConnection

connection = BlockingConnection(f"127.0.0.1:{sys.argv[1]}", timeout=30)
receiver = connection.create_receiver("q", credit=10)
print("received", receiver.receive().body)
try:
    connection.wait(lambda: False, timeout=5)
except Timeout:
    print("messages that wait in memory:", len(receiver.fetcher.incoming))
EOF
venv/bin/python client.py "$PORT" >seen
expect seen <<'EOF'
received m0
messages that wait in memory: 999
EOF
