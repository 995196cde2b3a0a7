"""Two sites with a gateway each way: both work on while the line between them is cut, and are equal afterwards.

Run it: ``python -m samples.s16_two_sites``.  It starts two ``holdfast serve`` itself, in directories of their own.
"""

import re
import subprocess
import sys
import tempfile
import time

from sdk import Connection, ConnectionFactory

NOBODY = "amqp://127.0.0.1:1"  # where no server is: the line is cut


def serve(directory: str, site: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--site", site, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--data", f"{directory}/{site}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return process, re.search(r"amqp://\S+", process.stdout.readline())[0]


def show(when: str, sites: list[Connection]) -> None:
    print(when)
    for number, site in enumerate(sites, 1):
        session = site.create_session()
        orders = [message.text for message in session.create_browser(session.create_queue("orders"))]
        prices = dict(sorted(session.create_region("prices").get_all().items()))
        (gateway,) = site.request("gateways", {})
        print(f"  site {number}: prices {prices}, {len(orders)} orders, {gateway['waiting']} waiting")


def settle(sites: list[Connection]) -> None:
    # Twice: what came from a site that was asked later may wait at one that was asked before.
    while any(gateway["waiting"] for site in sites * 2 for gateway in site.request("gateways", {})):
        time.sleep(0.05)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        (one, url), (two, other) = serve(directory, "1"), serve(directory, "2")
        sites = [ConnectionFactory(each).create_connection() for each in (url, other)]
        prices = [site.create_session().create_region("prices") for site in sites]
        session = sites[0].create_session()
        producer = session.create_producer(session.create_queue("orders"))
        link = {"name": "link", "destinations": ["queue:orders", "region:prices"], "state": "running"}
        for site, there in zip(sites, (other, url), strict=True):
            site.request("create_gateway", {**link, "url": there})
        prices[0].put("IBM", "92.50")
        producer.send("10 IBM")
        settle(sites)
        show("connected:", sites)
        for site in sites:
            site.request("change_gateway", {"name": "link", "url": NOBODY})
        prices[0].put("IBM", "93.00")
        producer.send_all(["20 IBM", "30 SAP"])
        prices[1].put("IBM", "94.00")  # later, so it will hold at both
        prices[1].put("SAP", "120.10")
        show("the line is cut, and both work on:", sites)
        for site, there in zip(sites, (other, url), strict=True):
            site.request("change_gateway", {"name": "link", "url": there})
        settle(sites)
        show("connected again:", sites)
        for site, process in zip(sites, (one, two), strict=True):
            site.close()
            process.terminate()
            process.communicate()


if __name__ == "__main__":
    main()
