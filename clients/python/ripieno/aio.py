"""The client for asyncio: the same calls as `Client`, awaited. Standard library and NumPy alone.

    from ripieno.aio import AsyncClient

    async with AsyncClient("localhost:8000") as client:
        answers = await asyncio.gather(*(client.infer("digits", {"image": image}) for image in images))

A call that is cancelled closes its connection, so that the server gives the request up, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ripieno.client import HEAD_LENGTH, Address, Refused, as_vectors, infer_body, model_path, parameters, refusal
from ripieno.tensors import unpack

HEAD_BYTES = 64 << 10


class AsyncClient:
    """A server, by an address such as `localhost:8000` or a URL with https.

    `token` is the bearer token, `tls` an `ssl.SSLContext`, `client_id` the name under which the server gives this
    client its share of the devices. `timeout_s` is how long to wait for a silent server. `at_once` bounds the calls
    that are under way together; further ones wait.
    """

    def __init__(
        self,
        url: str = "localhost:8000",
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        client_id: str | None = None,
        timeout_s: float = 60.0,
        at_once: int = 256,
    ) -> None:
        self._address = Address(url, token, client_id)
        self._tls, self._timeout_s = tls, timeout_s
        self._kept: list[_Connection] = []
        self._turns = asyncio.Semaphore(at_once)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        version: str | None = None,
        outputs: Sequence[str] | None = None,
        deadline_ms: float | None = None,
        priority: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Arrays by name in, arrays by name out. A request that cannot be in time is refused; `priority` 1 goes first."""
        body, headers = infer_body(inputs, outputs, deadline_ms, priority)
        async with self._asked(f"{model_path(model, version)}/infer", body, headers) as answer:
            content, length = await answer.read(), answer.getheader(HEAD_LENGTH)
        return unpack(content, length and int(length))

    async def stream(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        version: str | None = None,
        deadline_ms: float | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """The steps of an answer as dictionaries of what each gives, for models in cells."""
        values = {name: np.asarray(value).tolist() for name, value in inputs.items()}
        body = json.dumps({**values, "parameters": parameters(deadline_ms)}).encode()
        async with self._asked(f"{model_path(model, version)}/generate_stream", body) as answer:
            async for line in answer.lines():
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise Refused(answer.status, event["error"])
                    yield event

    async def embed(
        self, model: str, texts: str | Sequence[str], *, truncate: bool = False, dimensions: int | None = None
    ) -> np.ndarray:
        """A vector for each text, as the rows of one array."""
        asked = {"model": model, "input": texts, "truncate": truncate, "encoding_format": "base64"}
        if dimensions is not None:
            asked["dimensions"] = dimensions
        return as_vectors((await self._json("/v1/embeddings", asked))["data"])

    async def ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Whether the server serves, or a model of it."""
        try:
            await self._get(f"{model_path(model, version)}/ready" if model else "/v2/health/ready")
        except Refused:
            return False
        return True

    async def models(self) -> list[dict[str, Any]]:
        """What the repository holds, and in what state."""
        return await self._json("/v2/repository/index", {})

    async def metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Inputs and outputs of a model."""
        return json.loads(await self._get(model_path(model, version)))

    async def close(self) -> None:
        """Ends the connections."""
        kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _get(self, path: str) -> bytes:
        async with self._asked(path) as answer:
            return await answer.read()

    async def _json(self, path: str, asked: Any) -> Any:
        async with self._asked(path, json.dumps(asked).encode()) as answer:
            return json.loads(await answer.read() or b"null")

    @contextlib.asynccontextmanager
    async def _asked(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[_Answer]:
        """The answer to one request; its connection is kept if the answer was read to its end."""
        head = self._address.head(path, body, headers or {})
        async with self._turns:
            connection, answer = await self._answered(head, body or b"")
            try:
                if answer.status >= 400:
                    raise refusal(answer.status, answer.reason, answer.getheader("Retry-After"), await answer.read())
                yield answer
            finally:
                if answer.is_over and answer.keeps:
                    self._kept.append(connection)
                else:
                    connection.close()

    async def _answered(self, head: bytes, body: bytes) -> tuple[_Connection, _Answer]:
        """A kept connection may have been closed by the server meanwhile: then the request goes out once more."""
        if self._kept:
            connection = self._kept.pop()
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                return connection, await connection.ask(head, body)
            connection.close()
        connection = await self._connect()
        return connection, await connection.ask(head, body)

    async def _connect(self) -> _Connection:
        address, tls = self._address, None
        if address.secure:
            tls = self._tls or ssl.create_default_context()
        opened = asyncio.open_connection(address.host, address.port, ssl=tls, limit=HEAD_BYTES)
        return _Connection(*await asyncio.wait_for(opened, self._timeout_s), self._timeout_s)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float) -> None:
        self._reader, self._writer, self._timeout_s = reader, writer, timeout_s

    async def ask(self, head: bytes, body: bytes) -> _Answer:
        try:
            self._writer.write(head + body)
            await self._writer.drain()
            first = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), self._timeout_s)
            return _Answer(first, self._reader, self._timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._writer.close()


class _Answer:
    """An answer whose body is read as it comes."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader, timeout_s: float) -> None:
        line, _, rest = head.partition(b"\r\n")
        words = line.decode("latin-1").split(" ", 2)
        self.status, self.reason = int(words[1]), words[2] if len(words) > 2 else ""
        self._headers = http.client.parse_headers(io.BytesIO(rest))
        self._reader, self._timeout_s = reader, timeout_s
        self._is_chunked = self._headers.get("Transfer-Encoding", "").lower() == "chunked"
        self._left = int(self._headers.get("Content-Length") or 0)
        self.is_over = not self._is_chunked and self._left == 0
        self.keeps = self._headers.get("Connection", "").lower() != "close"

    def getheader(self, name: str) -> str | None:
        return self._headers.get(name)

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self._pieces()])

    async def lines(self) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in self._pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line
        if rest:
            yield rest

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self.is_over:
            yield await asyncio.wait_for(self._piece(), self._timeout_s)

    async def _piece(self) -> bytes:
        if not self._is_chunked:
            piece, self.is_over = await self._reader.readexactly(self._left), True
            return piece
        size = int((await self._reader.readline()).split(b";")[0], 16)
        piece = (await self._reader.readexactly(size + 2))[:size]
        self.is_over = size == 0
        return piece
