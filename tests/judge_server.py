"""A judge's endpoint for tests: a real HTTP server that votes, stalls, lies and dies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Say = Callable[["Asked"], None]


class Asked(BaseHTTPRequestHandler):
    """One request, and the ways to answer it."""

    server: JudgeServer

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.counting:
            self.number = len(self.server.asked)
            self.server.asked.append({"path": self.path, "headers": self.headers, **self.body})
        self.server.say(self)

    @property
    def question(self) -> str:
        """All that the judge is told about the conversation."""
        return str(self.body["messages"][-1]["content"])

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def text(self, content: Any) -> None:
        """A chat completion with this content."""
        choice = {"index": 0, "message": {"role": "assistant", "content": content}}
        self.send(json.dumps({"object": "chat.completion", "choices": [choice]}).encode())

    def refuse(self, status: int, message: str = "no", **headers: str) -> None:
        self.send(json.dumps({"error": {"message": message}}).encode(), status, **headers)

    def die(self) -> None:
        """Break off in the middle of an answer."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices": [')
        self.wfile.flush()
        self.connection.close()

    def stall(self) -> None:
        """Take the question and say nothing until the other side gives up."""
        self.server.released.wait(20)

    def drip(self) -> None:
        """A byte now and then: never silent, never done."""
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        try:
            while not self.server.released.is_set():
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            return

    def log_message(self, format: str, *args: Any) -> None:
        return


class JudgeServer(ThreadingHTTPServer):
    """Says what `say` says; remembers what it was asked."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, say: Say) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.say = say
        self.asked: list[dict[str, Any]] = []
        self.counting = threading.Lock()
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # the other side hung up, as it should


@contextmanager
def judge_server(say: Say) -> Iterator[JudgeServer]:
    server = JudgeServer(say)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()


def saying(*answers: str) -> Say:
    """These answers in turn, the last one for good."""
    return lambda asked: asked.text(answers[min(asked.number, len(answers) - 1)])
