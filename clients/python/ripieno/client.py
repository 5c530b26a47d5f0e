"""The client itself: one class over HTTP connections that are kept."""

import base64
import contextlib
import http.client
import json
import threading
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ripieno.tensors import pack, unpack
from ripieno_export.trees import node_table

HEAD_LENGTH = "Inference-Header-Content-Length"


class Refused(Exception):
    """What the server did not do: `status` as in HTTP, and `retry_after`, the seconds after which to come again, if it says so."""

    def __init__(self, status, message, retry_after=None):
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class Client:
    """A server, by an address such as `localhost:8000` or a URL with https.

    `token` is the bearer token, `tls` an `ssl.SSLContext`, `client_id` who asks, between whom the server divides, `timeout_s` how long to wait for a silent server, `at_once` how
    many requests of `start` are under way at the most.
    """

    def __init__(self, url="localhost:8000", token=None, tls=None, client_id=None, timeout_s=60.0, at_once=64):
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: an address is HOST:PORT, http://HOST:PORT or https://HOST:PORT")
        self._secure, self._tls, self._timeout_s = parts.scheme == "https", tls, timeout_s
        self._host, self._port = parts.hostname, parts.port or (443 if self._secure else 8000)
        known = {"Authorization": token and f"Bearer {token}", "X-Client-Id": client_id}
        self._headers = {name: value for name, value in known.items() if value}
        self._kept, self._lock = [], threading.Lock()
        self._threads = ThreadPoolExecutor(at_once, "ripieno")

    def infer(self, model, inputs, *, version=None, outputs=None, deadline_ms=None, priority=None):
        """Arrays by name in, arrays by name out.

        `deadline_ms` is from now on: whoever cannot be in time is refused. `priority` 1 goes first.
        """
        body, head_length = pack(inputs, outputs, _parameters(deadline_ms, priority))
        headers = {HEAD_LENGTH: str(head_length), "Content-Type": "application/octet-stream"}
        with self._asked(f"{_path(model, version)}/infer", body, headers) as response:
            answered = response.getheader(HEAD_LENGTH)
            return unpack(response.read(), answered and int(answered))

    def start(self, model, inputs, **options):
        """`infer` on a thread of its own: a Future of the answer."""
        return self._threads.submit(self.infer, model, inputs, **options)

    def stream(self, model, inputs, *, version=None, deadline_ms=None):
        """The steps of an answer as dictionaries of what each gives, for models in cells."""
        body = {name: np.asarray(value).tolist() for name, value in inputs.items()}
        body = json.dumps({**body, "parameters": _parameters(deadline_ms)}).encode()
        with self._asked(f"{_path(model, version)}/generate_stream", body) as response:
            for line in response:
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise Refused(response.status, event["error"])
                    yield event

    def embed(self, model, texts, *, truncate=False, dimensions=None):
        """A vector for each text, as the rows of one array."""
        asked = {"model": model, "input": texts, "truncate": truncate, "encoding_format": "base64"}
        if dimensions is not None:
            asked["dimensions"] = dimensions
        rows = self._json("/v1/embeddings", asked)["data"]
        return np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])

    def classify(self, model, texts, *, truncate=False):
        """For each text its likeliest label and the probabilities of all classes."""
        rows = self._json("/v1/classify", {"model": model, "input": texts, "truncate": truncate})["data"]
        return [(row["label"], np.array(row["probs"], np.float32)) for row in rows]

    def rerank(self, model, query, documents, *, top_n=None, truncate=False):
        """The documents' places and scores, the best first."""
        asked = {"model": model, "query": query, "documents": documents, "truncate": truncate}
        if top_n is not None:
            asked["top_n"] = top_n
        return [(row["index"], row["relevance_score"]) for row in self._json("/v1/rerank", asked)["results"]]

    def ready(self, model=None, version=None):
        """Whether the server serves, or a model of it."""
        try:
            self._get(f"{_path(model, version)}/ready" if model else "/v2/health/ready")
        except Refused:
            return False
        return True

    def models(self):
        """What the repository holds, and in what state."""
        return self._json("/v2/repository/index", {})

    def metadata(self, model, version=None):
        """Inputs and outputs of a model."""
        return json.loads(self._get(_path(model, version)))

    def load(self, model):
        """Loads a model, or loads it anew; needs the right to."""
        self._json(f"/v2/repository/models/{_quoted(model)}/load", {})

    def unload(self, model):
        """Takes a model out of service."""
        self._json(f"/v2/repository/models/{_quoted(model)}/unload", {})

    def close(self):
        """Ends the threads and connections."""
        self._threads.shutdown()
        with self._lock:
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _get(self, path):
        with self._asked(path) as response:
            return response.read()

    def _json(self, path, asked):
        with self._asked(path, json.dumps(asked).encode()) as response:
            return json.loads(response.read() or b"null")

    @contextlib.contextmanager
    def _asked(self, path, body=None, headers=()):
        """The answer to one request; its connection is kept if the answer was read to its end."""
        connection, response = self._answered(path, body, {**self._headers, **dict(headers)})
        try:
            if response.status >= 400:
                raise _refusal(response)
            yield response
        finally:
            if response.isclosed():
                with self._lock:
                    self._kept.append(connection)
            else:
                connection.close()

    def _answered(self, path, body, headers):
        """A kept connection may have been closed by the server meanwhile: then the request goes out once more, on a new one."""
        with self._lock:
            kept = self._kept.pop() if self._kept else None
        for connection in filter(None, [kept]):
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionError):
                return connection, _send(connection, path, body, headers)
            connection.close()
        connection = self._connect()
        return connection, _send(connection, path, body, headers)

    def _connect(self):
        if self._secure:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)


def tree(root, children=None, *, table="children", arity=None, dtype=np.int64, **values):
    """The inputs of one tree: the table of its nodes, and for each other input what `values` makes of a node.

        client.infer("arithmetic", tree(("+", "3", "4"), children=below, arity=2, token=lambda node: ord(node[0])))

    `children` gives the nodes below one; without it, lists are inner nodes. `arity` is the most children of a node.
    """
    nodes = node_table(root, children, arity)
    return {table: nodes.children, **{name: nodes.per_node(value, dtype) for name, value in values.items()}}


def _send(connection, path, body, headers):
    connection.request("GET" if body is None else "POST", path, body, headers)
    return connection.getresponse()


def _refusal(response):
    """Whatever form the error has: `error` as a text, as in the protocol, or as OpenAI has it."""
    body = response.read()
    try:
        error = json.loads(body)["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace").strip() or response.reason
    after = response.getheader("Retry-After")
    return Refused(response.status, message, float(after) if after else None)


def _parameters(deadline_ms=None, priority=None):
    """The parameters of a request, those that were given."""
    timeout_us = None if deadline_ms is None else max(round(1000 * deadline_ms), 1)
    known = {"timeout": timeout_us, "priority": priority}
    return {name: value for name, value in known.items() if value is not None}


def _path(model, version=None):
    return f"/v2/models/{_quoted(model)}" + (f"/versions/{version}" if version else "")


def _quoted(name):
    return urllib.parse.quote(name, safe="")
