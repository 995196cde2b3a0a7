"""A process that has loaded the command ``holdfast`` and the SDK, and forks a process for each command or program.

Python takes half a second to load them, and the tests run more than a thousand.  :mod:`tests.forked_command` is
how tests use this.

A request is one packet of a Unix socket: arguments of Python, environment and directory, with descriptors: the end of a
socket that gets the answers, and the standard streams that are open.  The answers are the number of the process, and
its exit status when it has ended, negative for a signal.  The server ends when nobody has the other end of its
socket.

The process does what a new one would: it runs ``python -m MODULE`` or ``python -c PROGRAM``, and Python ends it.
Variables that Python reads as it starts, such as ``PYTHONUNBUFFERED``, are those of the server.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import sys

COMMAND = "broker_adapter.server.cli"
_MAX_BYTES = 200_000  #: of a packet
_DESCRIPTORS = 4  #: of a packet at most


def request(
    server: socket.socket, arguments: list[str], environment: dict[str, str], streams: list[int | None], session: bool
) -> socket.socket:
    """Have a command or a program run.

    Args:
        server: the socket of a server.
        arguments: of Python: ``-m`` and a module, or ``-c`` and a program, and its arguments.
        environment: all of it.
        streams: descriptors for its standard input, output and error; None: closed.
        session: whether it gets a session of its own, and so no terminal.

    Returns:
        The socket on which the answers come.
    """
    answers, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    are_open = [stream is not None for stream in streams]
    given = [end.fileno(), *(stream for stream in streams if stream is not None)]
    with end:
        packet = json.dumps([arguments, environment, os.getcwd(), are_open, session]).encode()
        socket.send_fds(server, [packet], given)
    return answers


def answer(answers: socket.socket) -> int:
    """Wait for the next answer."""
    packet = answers.recv(100)
    if not packet:
        raise RuntimeError("the fork server has ended")
    return int(packet)


def serve(server: socket.socket) -> list[str] | None:
    """Answer requests.

    Returns:
        None in the server, when nobody has the other end any more; the arguments in the process of a command.
    """
    running: dict[int, tuple[int, int]] = {}  #: by the descriptor of a process: its number, and where answers go
    events = select.poll()
    events.register(server, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor in running:
                number, answers = running.pop(descriptor)
                events.unregister(descriptor)
                os.close(descriptor)
                _tell(answers, os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))
                os.close(answers)
                continue
            packet, descriptors, _, _ = socket.recv_fds(server, _MAX_BYTES, _DESCRIPTORS)
            if not packet:
                return None
            arguments, environment, directory, are_open, session = json.loads(packet)
            number = os.fork()
            if number == 0:
                server.detach()
                _become(environment, directory, [descriptors.pop(1) if each else None for each in are_open], session)
                return list(arguments)
            answers, *streams = descriptors
            for each in streams:
                os.close(each)
            _tell(answers, number)
            process = os.pidfd_open(number)
            running[process] = number, answers
            events.register(process, select.POLLIN)


def _tell(answers: int, number: int) -> None:
    try:
        os.write(answers, str(number).encode())
    except OSError:
        pass  # nobody waits for it


def _become(environment: dict[str, str], directory: str, streams: list[int | None], session: bool) -> None:
    """Make this process what a new one would be, with no descriptor of the server."""
    if session:
        os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, (name, stream) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
        if stream is None:
            os.close(number)
        else:
            os.dup2(stream, number)
        file = None if stream is None else _opened(number, getattr(sys, name))
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _opened(number: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    """A standard stream, as Python opens it when it starts: what the server's one was opened with, it does again."""
    mode = "r" if number == 0 else "w"
    unbuffered = like.write_through and number > 0
    file = os.fdopen(number, f"{mode}b", buffering=0 if unbuffered else -1, closefd=False)
    return io.TextIOWrapper(
        *(file, like.encoding, like.errors, "\n"),
        line_buffering=bool(like.line_buffering),
        write_through=like.write_through,
    )


def _stand_in(server: int, arguments: list[str]) -> None:
    """Stand for a command in a script of the shell: run it on one's own streams, and end as it does."""
    streams = [number if _is_open(number) else None for number in range(3)]
    with socket.socket(fileno=server) as own:
        answers = request(own, ["-m", COMMAND, *arguments], dict(os.environ), streams, session=False)
    answer(answers)
    status = answer(answers)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _load() -> None:
    """Load everything that a command may need; no thread may run then, for a fork copies only one."""
    import gc
    import importlib
    import pkgutil

    import broker_adapter
    import sdk

    for package in (broker_adapter, sdk):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, threads
    gc.collect()
    gc.freeze()  # else the collector of each process would write into, and so copy, what they share


def _main(role: str, descriptor: str, *arguments: str) -> None:
    if role == "stand-in":
        return _stand_in(int(descriptor), list(arguments))
    _load()
    given = serve(socket.socket(fileno=int(descriptor)))
    if given is not None:
        _run(*given)


def _run(kind: str, what: str, *arguments: str) -> None:
    import runpy
    import types

    sys.argv[1:] = arguments
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    sys.argv[0] = kind
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(what, "<string>", "exec", dont_inherit=True), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
