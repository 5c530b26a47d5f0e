"""The client itself: one class over HTTP connections that are kept."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ripieno.tensors import pack, unpack
from ripieno_export.trees import node_table

HEAD_LENGTH = "Inference-Header-Content-Length"


class Refused(Exception):
    """What the server did not do: `status` as in HTTP, and `retry_after`, the seconds after which to come again, if it says so."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class Address:
    """Where a server is, and the headers of each request to it."""

    def __init__(self, url: str, token: str | None, client_id: str | None) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: an address is HOST:PORT, http://HOST:PORT or https://HOST:PORT")
        self.secure, self.host = parts.scheme == "https", parts.hostname
        self.port = parts.port or (443 if self.secure else 8000)
        known = {"Authorization": token and f"Bearer {token}", "X-Client-Id": client_id}
        self.headers = {name: value for name, value in known.items() if value}

    def head(self, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """The head of a request as bytes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        every = {"Host": f"{host}:{self.port}", **self.headers, **headers}
        if body is not None:
            every["Content-Length"] = str(len(body))
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in every.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header must not have line breaks")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Client:
    """A server, by an address such as `localhost:8000` or a URL with https.

    `token` is the bearer token, `tls` an `ssl.SSLContext`, `client_id` the name under which the server gives this
    client its share of the devices. `timeout_s` is how long to wait for a silent server. `at_once` bounds the requests
    of `start` that are under way together.
    """

    def __init__(
        self,
        url: str = "localhost:8000",
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        client_id: str | None = None,
        timeout_s: float = 60.0,
        at_once: int = 64,
    ) -> None:
        self._address = Address(url, token, client_id)
        self._tls, self._timeout_s = tls, timeout_s
        self._kept: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(at_once, "ripieno")

    def infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        version: str | None = None,
        outputs: Sequence[str] | None = None,
        deadline_ms: float | None = None,
        priority: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Arrays by name in, arrays by name out.

        `deadline_ms` is from now on: whoever cannot be in time is refused. `priority` 1 goes first.
        """
        body, headers = infer_body(inputs, outputs, deadline_ms, priority)
        with self._asked(f"{model_path(model, version)}/infer", body, headers) as response:
            answered = response.getheader(HEAD_LENGTH)
            return unpack(response.read(), answered and int(answered))

    def start(self, model: str, inputs: Mapping[str, npt.ArrayLike], **options: Any) -> Future[dict[str, np.ndarray]]:
        """`infer` on a thread of its own: a Future of the answer."""
        return self._threads.submit(self.infer, model, inputs, **options)

    def stream(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        version: str | None = None,
        deadline_ms: float | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The steps of an answer as dictionaries of what each gives, for models in cells."""
        body = {name: np.asarray(value).tolist() for name, value in inputs.items()}
        body = json.dumps({**body, "parameters": parameters(deadline_ms)}).encode()
        with self._asked(f"{model_path(model, version)}/generate_stream", body) as response:
            for line in response:
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise Refused(response.status, event["error"])
                    yield event

    def embed(
        self, model: str, texts: str | Sequence[str], *, truncate: bool = False, dimensions: int | None = None
    ) -> np.ndarray:
        """A vector for each text, as the rows of one array."""
        asked = {"model": model, "input": texts, "truncate": truncate, "encoding_format": "base64"}
        if dimensions is not None:
            asked["dimensions"] = dimensions
        return as_vectors(self._json("/v1/embeddings", asked)["data"])

    def classify(
        self, model: str, texts: str | Sequence[str], *, truncate: bool = False
    ) -> list[tuple[str, np.ndarray]]:
        """For each text its likeliest label and the probabilities of all classes."""
        rows = self._json("/v1/classify", {"model": model, "input": texts, "truncate": truncate})["data"]
        return [(row["label"], np.array(row["probs"], np.float32)) for row in rows]

    def rerank(
        self, model: str, query: str, documents: Sequence[str], *, top_n: int | None = None, truncate: bool = False
    ) -> list[tuple[int, float]]:
        """The documents' places and scores, the best first."""
        asked = {"model": model, "query": query, "documents": documents, "truncate": truncate}
        if top_n is not None:
            asked["top_n"] = top_n
        return [(row["index"], row["relevance_score"]) for row in self._json("/v1/rerank", asked)["results"]]

    def ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Whether the server serves, or a model of it."""
        try:
            self._get(f"{model_path(model, version)}/ready" if model else "/v2/health/ready")
        except Refused:
            return False
        return True

    def models(self) -> list[dict[str, Any]]:
        """What the repository holds, and in what state."""
        return self._json("/v2/repository/index", {})

    def metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Inputs and outputs of a model."""
        return json.loads(self._get(model_path(model, version)))

    def load(self, model: str) -> None:
        """Loads a model, or loads it anew; needs the right to."""
        self._json(f"/v2/repository/models/{_quoted(model)}/load", {})

    def unload(self, model: str) -> None:
        """Takes a model out of service."""
        self._json(f"/v2/repository/models/{_quoted(model)}/unload", {})

    def close(self) -> None:
        """Ends the threads and connections."""
        self._threads.shutdown()
        with self._lock:
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _get(self, path: str) -> bytes:
        with self._asked(path) as response:
            return response.read()

    def _json(self, path: str, asked: Any) -> Any:
        with self._asked(path, json.dumps(asked).encode()) as response:
            return json.loads(response.read() or b"null")

    @contextlib.contextmanager
    def _asked(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer to one request; its connection is kept if the answer was read to its end."""
        connection, response = self._answered(path, body, {**self._address.headers, **(headers or {})})
        try:
            if response.status >= 400:
                raise refusal(response.status, response.reason, response.getheader("Retry-After"), response.read())
            yield response
        finally:
            if response.isclosed():
                with self._lock:
                    self._kept.append(connection)
            else:
                connection.close()

    def _answered(
        self, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A kept connection may have been closed by the server meanwhile: then the request goes out once more, on a new one."""
        with self._lock:
            kept = self._kept.pop() if self._kept else None
        for connection in filter(None, [kept]):
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionError):
                return connection, _send(connection, path, body, headers)
            connection.close()
        connection = self._connect()
        return connection, _send(connection, path, body, headers)

    def _connect(self) -> http.client.HTTPConnection:
        host, port, timeout = self._address.host, self._address.port, self._timeout_s
        if self._address.secure:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)


def tree(
    root: Any,
    children: Callable[[Any], Sequence[Any]] | None = None,
    *,
    table: str = "children",
    arity: int | None = None,
    dtype: npt.DTypeLike = np.int64,
    **values: Callable[[Any], Any],
) -> dict[str, np.ndarray]:
    """The inputs of one tree: the table of its nodes, and for each other input what `values` makes of a node.

        client.infer("arithmetic", tree(("+", "3", "4"), children=below, arity=2, token=lambda node: ord(node[0])))

    `children` gives the nodes below one; without it, lists are inner nodes. `arity` is the most children of a node.
    """
    nodes = node_table(root, children, arity)
    return {table: nodes.children, **{name: nodes.per_node(value, dtype) for name, value in values.items()}}


def _send(
    connection: http.client.HTTPConnection, path: str, body: bytes | None, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    connection.request("GET" if body is None else "POST", path, body, headers)
    return connection.getresponse()


def refusal(status: int, reason: str, after: str | None, body: bytes) -> Refused:
    """Whatever form the error has: `error` as a text, as in the protocol, or as OpenAI has it."""
    try:
        error = json.loads(body)["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace").strip() or reason
    return Refused(status, message, float(after) if after else None)


def infer_body(
    inputs: Mapping[str, npt.ArrayLike],
    outputs: Sequence[str] | None,
    deadline_ms: float | None,
    priority: int | None,
) -> tuple[bytes, dict[str, str]]:
    """The body of an inference request, and its headers."""
    body, head_length = pack(inputs, outputs, parameters(deadline_ms, priority))
    return body, {HEAD_LENGTH: str(head_length), "Content-Type": "application/octet-stream"}


def as_vectors(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The vectors of an answer about texts, as the rows of one array."""
    return np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])


def parameters(deadline_ms: float | None = None, priority: int | None = None) -> dict[str, int]:
    """The parameters of a request, those that were given."""
    timeout_us = None if deadline_ms is None else max(round(1000 * deadline_ms), 1)
    known = {"timeout": timeout_us, "priority": priority}
    return {name: value for name, value in known.items() if value is not None}


def model_path(model: str, version: str | None = None) -> str:
    """The path of a model."""
    return f"/v2/models/{_quoted(model)}" + (f"/versions/{version}" if version else "")


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
