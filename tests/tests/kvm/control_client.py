"""A control client that shares nothing with vmm: every method, and everything that clients do wrong.

python3 control_client.py SOCKET FOLDER PATIENCE, while a guest runs `workload=spin`.
"""

import json
import os
import socket
import stat
import sys
import time

SOCKET, FOLDER = sys.argv[1:3]
# How long anything may take, in seconds.
PATIENCE = float(sys.argv[3])


class Client:
    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(SOCKET)
        self.lines = self.socket.makefile("rb")

    def send(self, data):
        self.socket.sendall(data)

    def reply(self):
        line = self.lines.readline()
        assert line.endswith(b"\n"), f"no whole reply: {line!r}"
        reply = json.loads(line)
        assert reply["jsonrpc"] == "2.0", reply
        assert ("result" in reply) != ("error" in reply), reply
        return reply

    def ask(self, method, params=None, identity=7):
        request = {"jsonrpc": "2.0", "id": identity, "method": method}
        if params is not None:
            request["params"] = params
        end = time.monotonic() + PATIENCE
        while True:
            self.send(json.dumps(request).encode() + b"\n")
            reply = self.reply()
            assert reply["id"] == identity, reply
            # What a vCPU has missed its pause for is asked again.
            missed = "did not pause within" in reply.get("error", {}).get("message", "")
            if not missed or time.monotonic() > end:
                return reply

    def call(self, method, params=None):
        reply = self.ask(method, params)
        assert "result" in reply, f"{method}: {reply}"
        return reply["result"]

    def refused(self, code, line):
        self.send(line)
        reply = self.reply()
        assert reply["error"]["code"] == code, f"{line[:80]!r}: {reply}"
        message = reply["error"]["message"]
        assert message and "\n" not in message, reply
        return reply


def every_method(client):
    status = client.call("status")
    assert status["guest"]["state"] == "running", status
    assert status["tracing"]["state"] == "off", status
    before = client.call("digest")["sha256"]
    assert len(before) == 64, before
    spins = client.call("functions", {"glob": "spin_*"})["functions"]
    states = {function["name"]: function["state"] for function in spins}
    assert states == dict.fromkeys(["spin_root", "spin_branch", "spin_leaf"], "available"), states

    assert client.call("start", {"filter": ["spin_root"]})["patched"] == 1
    assert client.call("status")["tracing"]["state"] == "tracing"
    assert "error" in client.ask("start")
    assert client.call("digest")["sha256"] != before
    assert client.call("filter.add", {"filter": ["spin_leaf"]})["traced"] == 2
    assert client.call("filter.remove", {"filter": ["spin_root"]})["traced"] == 1
    assert client.call("filter.set", {"filter": ["spin_*"], "notrace": ["*leaf"]})["traced"] == 2
    assert client.call("filter.clear")["traced"] > 100
    assert client.call("tracing-off") == {"changed": True}
    assert client.call("status")["tracing"]["state"] == "switched-off"
    assert client.call("tracing-on") == {"changed": True}
    assert client.call("tracing-on") == {"changed": False}
    assert client.call("pause") == {"changed": True}
    status = client.call("status")
    assert status["guest"]["state"] == "paused", status
    assert {vcpu["state"] for vcpu in status["vcpus"]} == {"paused"}, status
    assert client.call("resume") == {"changed": True}
    assert client.call("resume") == {"changed": False}
    dump = os.path.join(FOLDER, "dump")
    assert client.call("dump", {"dir": dump})["dir"] == dump
    assert os.path.exists(os.path.join(dump, "info"))
    assert client.call("stop")["restored"] > 100
    assert "error" in client.ask("stop")
    assert client.call("digest")["sha256"] == before


def malformed(client):
    parse, request, method, params = -32700, -32600, -32601, -32602
    for line in [b"hello\n", b"{\n", b'{"jsonrpc":"2.0","id":1,"method":"sta\n', b"\xff\xfe\x00\n"]:
        assert client.refused(parse, line)["id"] is None
    for line in [b"[]\n", b"1\n", b"null\n", b"{}\n", b'{"jsonrpc":"1.0","id":1,"method":"status"}\n',
                 b'{"jsonrpc":"2.0","id":1}\n', b'{"jsonrpc":"2.0","id":1,"method":5}\n',
                 b'{"jsonrpc":"2.0","id":1,"method":"status","extra":1}\n',
                 b'{"jsonrpc":"2.0","id":{},"method":"status"}\n']:
        client.refused(request, line)
    client.refused(method, b'{"jsonrpc":"2.0","id":1,"method":"no-such-method"}\n')
    for line in [b'"status","params":{"a":1}', b'"dump"', b'"dump","params":{"dir":1}',
                 b'"start","params":{"filter":"x"}', b'"start","params":{"filters":["x"]}',
                 b'"functions","params":{"glob":["x"]}']:
        client.refused(params, b'{"jsonrpc":"2.0","id":1,"method":' + line + b"}\n")
    client.refused(parse, b"[" * 60000 + b"\n")
    near = client.ask("start", {"filter": ["spin_rot"]})
    assert "spin_root" in near["error"]["message"], near
    # A notification has no reply; blank lines are nothing.
    client.send(b'{"jsonrpc":"2.0","method":"status"}\n\n   \n')
    assert client.ask("status", identity="text")["id"] == "text"


def oversized():
    client = Client()
    try:
        for _ in range(64):
            client.send(b"x" * 65536)
    except (BrokenPipeError, ConnectionResetError):
        pass  # It is closed on us, as it should be.
    try:
        line = client.lines.readline()
        assert not line or json.loads(line)["error"]["code"] == -32001, line
    except ConnectionResetError:
        pass
    # Just short enough is served.
    client = Client()
    line = b'{"jsonrpc":"2.0","id":1,"method":"status"}'
    client.send(line + b" " * (65536 - len(line)) + b"\n")
    assert "result" in client.reply()


def clients_that_leave():
    request = b'{"jsonrpc":"2.0","id":1,"method":"functions"}\n'
    for part in [b"", request[:20], request, request * 20]:
        client = Client()
        client.send(part)
        client.socket.close()
        client.lines.close()
    # Sends all it has, closes its end of the pipe, and still gets its replies.
    client = Client()
    client.send(request)
    client.socket.shutdown(socket.SHUT_WR)
    assert len(client.reply()["result"]["functions"]) > 100
    assert client.lines.readline() == b""
    # The same with half a request, and with a last line that has no newline.
    for last, key in [(request[:20], "error"), (request[:-1], "result")]:
        client = Client()
        client.send(request + last)
        client.socket.shutdown(socket.SHUT_WR)
        client.reply()
        reply = client.reply()
        assert key in reply, reply
        assert key == "result" or reply["error"]["code"] == -32700, reply
        assert client.lines.readline() == b""


def two_at_once(first):
    second = Client()
    half = b'{"jsonrpc":"2.0","id":1,"me'
    first.send(half)
    assert second.call("status")["guest"]["state"] == "running"
    assert second.call("start", {"filter": ["spin_root"]})["patched"] == 1
    first.send(b'thod":"status"}\n')
    assert first.reply()["result"]["tracing"]["state"] == "tracing"
    assert first.call("stop")["restored"] == 1
    # Many requests in one piece are answered in order.
    lines = b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"status"}\n' % n for n in range(100))
    second.send(lines)
    assert [second.reply()["id"] for _ in range(100)] == list(range(100))


def nobody_reads():
    """A client that asks and asks and never reads must not stop the others."""
    client = Client()
    client.socket.setblocking(False)
    try:
        while True:
            client.socket.send(b'{"jsonrpc":"2.0","id":1,"method":"functions"}\n' * 100)
    except BlockingIOError:
        pass
    assert Client().call("status")["guest"]["state"] == "running"
    return client


def main():
    mode = stat.S_IMODE(os.stat(SOCKET).st_mode)
    assert mode == 0o600, oct(mode)
    client = Client()
    every_method(client)
    malformed(client)
    oversized()
    clients_that_leave()
    two_at_once(client)
    silent = nobody_reads()
    assert client.call("status")["guest"]["state"] == "running"
    assert client.call("shutdown") == {"changed": True}
    silent.socket.close()
    print("all good")


main()
