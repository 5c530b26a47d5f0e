"""Every public method of the stock Triton client's four APIs: it works, or its error names the way out. The table of it in
docs/reference/clients.md is held to what is found here; `python tests/python/test_every_method.py` prints a new one.
"""

import asyncio
import importlib
import inspect
import json
import pathlib
import queue
import sys
import tempfile
import urllib.request

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

import repositories
from serving import ROOT, Server

APIS = ["http", "http.aio", "grpc", "grpc.aio"]
PAGE = ROOT / "docs" / "reference" / "clients.md"
ANSWER_S = 60
KEY = "/ripieno-every-method"
# What the errors of methods name that are not offered.
REFUSED = {
    "register_cuda_shared_memory": "use system shared memory",
    "get_trace_settings": "--record FILE",
    "update_trace_settings": "--record FILE",
    "get_log_settings": "RIPIENO_LOG",
    "update_log_settings": "RIPIENO_LOG",
}
A, B = (np.full((2, 4), value, np.float32) for value in (5, 3))


class Api:
    """One of the four, with a client; its calls are awaited where they are to be."""

    def __init__(self, name, server):
        self.name, self.server = name, server
        module = importlib.import_module(f"tritonclient.{name}")
        # The asyncio modules take the tensors of the others.
        self.tensors = importlib.import_module(f"tritonclient.{name.split('.')[0]}")
        self.auth = importlib.import_module(f"tritonclient.{name}.auth")
        self.client = module.InferenceServerClient(server.http if name.startswith("http") else server.grpc)
        self.methods = [name for name in dir(module.InferenceServerClient) if not name.startswith("_")]

    async def call(self, method, *args, **options):
        result = getattr(self.client, method)(*args, **options)
        return await result if inspect.isawaitable(result) else result

    def inputs(self):
        tensors = [self.tensors.InferInput(name, list(A.shape), "FP32") for name in ("a", "b")]
        for tensor, array in zip(tensors, (A, B)):
            tensor.set_data_from_numpy(array)
        return tensors


def check(result):
    np.testing.assert_array_equal(result.as_numpy("sum"), A + B)


async def health(api):
    assert await api.call("is_server_live") and await api.call("is_server_ready")
    assert await api.call("is_model_ready", "pair") and not await api.call("is_model_ready", "nobody")


async def descriptions(api):
    assert "ripieno" in str(await api.call("get_server_metadata"))
    assert "difference" in str(await api.call("get_model_metadata", "pair"))
    assert "max_batch_size" in str(await api.call("get_model_config", "pair"))
    assert "pair" in str(await api.call("get_model_repository_index"))
    assert "inference_count" in str(await api.call("get_inference_statistics", "pair"))


async def loading(api):
    slo = {"parameters": {"slo_ms": {"string_value": "20000"}}}
    await api.call("load_model", "pair", config=json.dumps(slo))
    await api.call("unload_model", "pair")
    assert not await api.call("is_model_ready", "pair")
    await api.call("load_model", "pair")
    assert await api.call("is_model_ready", "pair")


async def inference(api):
    check(await api.call("infer", "pair", api.inputs()))


async def in_the_background(api):
    if api.name == "http":
        return check(api.client.async_infer("pair", api.inputs()).get_result())
    answers = queue.Queue()
    api.client.async_infer("pair", api.inputs(), lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=ANSWER_S)
    assert error is None
    check(result)


async def streams(api):
    answers = queue.Queue()
    api.client.start_stream(lambda result, error: answers.put((result, error)))
    api.client.async_stream_infer("pair", api.inputs())
    result, error = answers.get(timeout=ANSWER_S)
    api.client.stop_stream()
    assert error is None
    check(result)


async def asynchronous_streams(api):
    async def requests():
        yield {"model_name": "pair", "inputs": api.inputs()}

    async for result, error in api.client.stream_infer(requests()):
        assert error is None
        check(result)


async def bodies(api):
    """Requests and answers for who has an HTTP client of his own."""
    body, length = api.client.generate_request_body(api.inputs())
    headers = {"Inference-Header-Content-Length": str(length)} if length else {}
    request = urllib.request.Request(f"http://{api.server.http}/v2/models/pair/infer", body, headers)
    with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:
        length = reply.headers["Inference-Header-Content-Length"]
        check(api.client.parse_response_body(reply.read(), header_length=length and int(length)))


async def plugins(api):
    api.client.register_plugin(api.auth.BasicAuth("somebody", "secret"))
    assert api.client.plugin() is not None
    check(await api.call("infer", "pair", api.inputs()))
    api.client.unregister_plugin()


async def regions(api):
    handle = shm.create_shared_memory_region("region", KEY, 64)
    try:
        await api.call("register_system_shared_memory", "region", KEY, 64)
        assert KEY in str(await api.call("get_system_shared_memory_status"))
        await api.call("unregister_system_shared_memory")
    finally:
        shm.destroy_shared_memory_region(handle)
    assert KEY not in str(await api.call("get_system_shared_memory_status"))


async def no_regions_of_cuda(api):
    """Who tidies up before and after his work finds that there is nothing."""
    await api.call("unregister_cuda_shared_memory")
    assert "region" not in str(await api.call("get_cuda_shared_memory_status")).replace("regions", "")


async def refusals(api):
    arguments = {
        "register_cuda_shared_memory": ("region", b"aGFuZGxl", 0, 64),
        "update_trace_settings": ("pair", {"trace_level": ["TIMESTAMPS"]}),
        "update_log_settings": ({"log_verbose_level": 1},),
    }
    for method, named in REFUSED.items():
        with pytest.raises(InferenceServerException, match=named):
            await api.call(method, *arguments.get(method, ()))


# Which methods each of these tries.
TRIED = {
    health: ["is_server_live", "is_server_ready", "is_model_ready"],
    descriptions: [
        "get_server_metadata",
        "get_model_metadata",
        "get_model_config",
        "get_model_repository_index",
        "get_inference_statistics",
    ],
    loading: ["load_model", "unload_model"],
    inference: ["infer"],
    in_the_background: ["async_infer"],
    streams: ["start_stream", "async_stream_infer", "stop_stream"],
    asynchronous_streams: ["stream_infer"],
    bodies: ["generate_request_body", "parse_response_body"],
    plugins: ["register_plugin", "plugin", "unregister_plugin"],
    regions: [
        "register_system_shared_memory",
        "get_system_shared_memory_status",
        "unregister_system_shared_memory",
    ],
    no_regions_of_cuda: ["get_cuda_shared_memory_status", "unregister_cuda_shared_memory"],
    refusals: list(REFUSED),
}


async def try_all(name, server):
    """The methods of an API, each tried."""
    api = Api(name, server)
    for attempt, methods in TRIED.items():
        has = [method for method in methods if method in api.methods]
        assert has in ([], methods), "they are tried together"
        if has:
            await attempt(api)
    await api.call("close")
    return api.methods


def serve(folder):
    repositories.write(folder, "pair", repositories.sum_and_difference())
    return Server(folder, "--shared-memory", "local", "--load-overrides", "16")


def table(found):
    """What was found, as the page shows it: a row for each method that any of the APIs has."""
    order = [method for methods in TRIED.values() for method in methods] + ["close"]
    lines = ["| method | HTTP | HTTP, asyncio | gRPC | gRPC, asyncio |", "|---|---|---|---|---|"]
    for method in order:
        word = "refused" if method in REFUSED else "works"
        cells = [word if method in found[api] else "-" for api in APIS]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("repository")) as server:
        yield {name: asyncio.run(try_all(name, server)) for name in APIS}


def test_every_method_is_tried(found):
    tried = {method for methods in TRIED.values() for method in methods} | {"close"}
    assert {name: set(methods) - tried for name, methods in found.items()} == {name: set() for name in APIS}


def test_the_page_says_what_was_found(found):
    assert table(found) in PAGE.read_text(), "python tests/python/test_every_method.py prints the table as it is"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, serve(pathlib.Path(folder)) as running:
        sys.stdout.write(table({name: asyncio.run(try_all(name, running)) for name in APIS}) + "\n")
