"""The command ``holdfast config``: check or show a file with the settings of single queues, or print an example."""

from __future__ import annotations

import argparse
import json

from broker_adapter.config_file import example, read_policies, shown_value
from broker_adapter.destination import queue
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.server.cli.server_commands import setting_rows
from broker_adapter.server.cli.tools import say, table
from broker_adapter.settings import EngineSettings


def config(options: argparse.Namespace) -> int:
    """Do what ``options.action`` says with a file."""
    if options.action == "example":
        for line in [json.dumps({"example": example()})] if options.json else example().splitlines():
            say(line)
        return 0
    if options.file is None:
        raise ValueError(f"holdfast config {options.action} needs a FILE, or $HOLDFAST_CONFIG")
    policies = read_policies(options.file)
    if options.action == "check":
        found = {"file": options.file, "policies": len(policies)}
        say(json.dumps(found) if options.json else f"{options.file}: nothing is wrong ({len(policies)} [[policy]])")
        return 0
    if options.queue is None:
        for each in policies if options.json else ():
            say(json.dumps({"match": each.match, **each.values}))
        rows = [(each.match, name, shown_value(value)) for each in policies for name, value in each.values.items()]
        if not options.json:
            table(("match", "setting", "value"), rows, texts=3)
        return 0
    shown = Policies(EngineSettings(), policies).settings_of(queue(options.queue)).shown()
    if options.json:
        say(json.dumps(shown))
    else:
        table(("setting", "value", "from"), setting_rows(shown), texts=3)
    return 0
