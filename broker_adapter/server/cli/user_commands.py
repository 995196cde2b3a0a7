"""The command ``holdfast user``: add, remove or list the users of a users file."""

from __future__ import annotations

import argparse
import json
import sys

from broker_adapter.mechanisms import ITERATIONS
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.cli.tools import PASSWORD, asked_password, decoded, given_password, say, undecoded


def user(options: argparse.Namespace) -> int:
    """Do what ``options.action`` says with a users file."""
    if options.action != "add" and options.iterations is not None:
        raise ValueError("--iterations is for add: the number belongs to a password, and changes with it")
    if options.action == "list":
        for name, iterations in UsersFile(options.file).iterations.items():
            fields = {"user": name, "iterations": iterations}
            say(json.dumps(fields) if options.json else f"{name}  {iterations} iterations")
        return 0
    if options.name is None:
        raise ValueError(f"holdfast user {options.action} needs a NAME")
    if options.action == "remove":
        UsersFile(options.file).remove(options.name)
        removed = {"user": options.name, "removed": True}
        say(json.dumps(removed) if options.json else f"removed {options.name} from {options.file}")
        return 0
    password = _new_password(options.name)
    iterations = ITERATIONS if options.iterations is None else options.iterations
    is_new = UsersFile.open_or_make(options.file).add(options.name, password, iterations)
    if options.json:
        say(json.dumps({"user": options.name, "is_new": is_new}))
    else:
        say(f"{'added' if is_new else 'changed the password of'} {options.name} in {options.file}")
    return 0


def _new_password(name: str) -> str:
    """From the environment, a person at the terminal, or the standard input."""
    given = given_password()
    if given is not None:
        return given
    if not sys.stdin.isatty():
        try:
            line = sys.stdin.readline().rstrip("\n")
        except OSError:
            line = ""
        except UnicodeDecodeError:
            raise undecoded(f"the password of {name!r}") from None
        if not line:
            raise ValueError(f"the password of {name!r} is missing; give it in ${PASSWORD}, or as a line of input")
        return decoded(line, f"the password of {name!r}")
    password = asked_password(name)
    if asked_password(name, "once more: ") != password:
        raise ValueError("the passwords differ; nothing was changed")
    return password
