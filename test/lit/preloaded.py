"""Run tools in processes that have their imports done: these take most of the time of a short command.

    python -I -S preloaded.py SOCKET TOOL ARGUMENTS...    run a tool: its streams, folder, environment and exit code are
                                                          those of this process
    python preloaded.py serve SOCKET                      what does so: it forks for each, and ends with its stdin

A tool is a console script of the environment that serves. What only that needs is imported there.
"""

# ruff: noqa: PLC0415, SIM115

import os
import signal
import socket
import sys

_LENGTH = 8
_STREAMS = (0, 1, 2)


def run(path, words):
    """Has a tool run, and returns its exit code. The three streams of this process become those of the tool."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        data = "\0".join([os.getcwd(), str(len(words)), *words, *(f"{a}={b}" for a, b in os.environ.items())]).encode()
        socket.send_fds(client, [len(data).to_bytes(_LENGTH, "big")], _STREAMS)
        client.sendall(data)
        code = client.recv(1)
    return code[0] if code else 70


def serve(path):
    """Runs tools as it is asked to, until stdin ends."""
    import select
    from importlib.metadata import entry_points

    tools = {one.name: one for one in entry_points(group="console_scripts")}
    for name in ("rhino-opt", "filecheck"):
        tools[name].load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who answer
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen(64)
        os.rename(f"{path}.new", path)  # it is there once it is listened to
        while True:
            ready, _, _ = select.select([server, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _answer(connection, tools)
            connection.close()


def _answer(connection, tools):
    """Runs what is asked for in a process of its own, and tells how it ended. Does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH, len(_STREAMS))
    data, length = b"", int.from_bytes(head, "big")
    while len(data) < length:
        data += connection.recv(length - len(data))
    folder, count, *rest = data.decode().split("\0")
    words, environment = rest[: int(count)], rest[int(count) :]
    child = os.fork()
    if child == 0:
        connection.close()
        for stream, given in zip(_STREAMS, streams, strict=True):
            os.dup2(given, stream)
            os.close(given)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(one.split("=", 1) for one in environment)
        _be(tools[words[0]], words)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    connection.sendall(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def _be(tool, words):
    """Runs a tool, and ends the process as it would end. Does not return."""
    import atexit
    import traceback

    sys.argv = words
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # not those of what served
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    try:
        ended = tool.load()()
    except SystemExit as error:
        ended = error.code
    except BaseException:
        traceback.print_exc()
        ended = 1
    if isinstance(ended, str):
        print(ended, file=sys.stderr)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads
            ended = ended or 1
    os._exit(ended if isinstance(ended, int) else int(ended is not None))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[2]) if sys.argv[1] == "serve" else run(sys.argv[1], sys.argv[2:]))
