"""HTTP/1.1 by hand, so that every byte is under control: load without the cost of a client library, pipelines, half-closes.

A stock library hides what is counted here: it sends a request again when a connection breaks, and drops what comes after an answer.
"""

import asyncio
import dataclasses
import json
import time

LONGEST_ANSWER = 64 << 20


@dataclasses.dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict
    body: bytes
    elapsed: float = 0.0

    def json(self):
        return json.loads(self.body)

    def output(self, name):
        """The flat data of one output."""
        return next(output["data"] for output in self.json()["outputs"] if output["name"] == name)


class NoAnswer(Exception):
    """The connection ended, or time was up, before the answer was whole."""


def post(path, body, headers=()):
    """A request as bytes."""
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def get(path):
    """The same without a body."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def infer_body(*inputs, **more):
    """The JSON of an inference; an input is (name, datatype, shape, data)."""
    tensors = [{"name": name, "datatype": kind, "shape": shape, "data": data} for name, kind, shape, data in inputs]
    return json.dumps({"inputs": tensors, **more}).encode()


def infer(model, *inputs, headers=(), **more):
    """An inference as bytes."""
    return post(f"/v2/models/{model}/infer", infer_body(*inputs, **more), headers)


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


async def connect(address, source=None):
    """A connection, from another loopback address if one is given."""
    host, port = split(address)
    return await asyncio.open_connection(host, port, limit=1 << 20, local_addr=(source, 0) if source else None)


async def read_answer(reader):
    """The next answer of a connection; interim ones (1xx) come before it and are none."""
    status = 100
    while 100 <= status < 200:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ")[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    if headers.get("transfer-encoding") == "chunked":
        body = await read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = await reader.read(LONGEST_ANSWER)
    return Answer(status, headers, body)


async def read_chunks(reader):
    parts = []
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        parts.append((await reader.readexactly(size + 2))[:-2])
        if size == 0:
            return b"".join(parts)


class Client:
    """Connections to one address that are kept and used again, as many as requests are under way at once."""

    def __init__(self, address, ledger, source=None, patience=30.0):
        self.address, self.ledger, self.source, self.patience = address, ledger, source, patience
        self.idle = []

    async def ask(self, request, where="load"):
        """Sends one request and returns its answer; the ledger has both."""
        self.ledger.sent += 1
        begun = time.monotonic()
        try:
            answer = await asyncio.wait_for(self._exchange(request), self.patience)
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError, IndexError, TimeoutError) as error:
            self.ledger.miss(where, type(error).__name__)
            raise NoAnswer(f"{type(error).__name__}: {error}") from error
        self.ledger.answered += 1
        return dataclasses.replace(answer, elapsed=time.monotonic() - begun)

    async def status(self, request, where="load"):
        """Only the status; 0 where there was no answer."""
        try:
            return (await self.ask(request, where)).status
        except NoAnswer:
            return 0

    async def close(self):
        for _, writer in self.idle:
            writer.close()
        self.idle.clear()

    async def _exchange(self, request):
        while self.idle:
            stream = self.idle.pop()
            if stream[0].at_eof():
                stream[1].close()
                continue
            try:
                return await self._over(stream, request)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                # The server may close an idle connection at any time; the request that crossed it goes out once more.
                if getattr(error, "partial", b""):
                    raise
        return await self._over(await connect(self.address, self.source), request)

    async def _over(self, stream, request):
        reader, writer = stream
        try:
            writer.write(request)
            await writer.drain()
            answer = await read_answer(reader)
        except BaseException:
            writer.close()
            raise
        # A byte beyond the answer is a second answer. It is seen when the connection is used again, too.
        if getattr(reader, "_buffer", b""):
            self.ledger.surplus += 1
            writer.close()
        elif answer.headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self.idle.append(stream)
        return answer


async def open_loop(client, request, times, where="load"):
    """Each request leaves at its own time, whatever became of those before: (intended time, status, seconds) of each."""
    loop = asyncio.get_running_loop()
    begun, done = loop.time(), []

    async def one(at):
        sent = loop.time()
        status = await client.status(request, where)
        done.append((at, status, loop.time() - sent))

    tasks = []
    for at in times:
        pause = begun + at - loop.time()
        if pause > 0:
            await asyncio.sleep(pause)
        tasks.append(asyncio.create_task(one(at)))
    await asyncio.gather(*tasks)
    return done
