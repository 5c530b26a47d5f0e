"""Section C, items 9 to 12: memory, threads and connections have bounds that hold, whatever a client sends or leaves unread."""

import asyncio
import gzip
import json
import os
import signal
import struct

import tritonclient.grpc.aio as grpc_client
from tritonclient.grpc import service_pb2

import http2
import models
import repositories
import wire
from bench import is_served, tally

# What all requests together may hold, by default and in the quick form. The process takes its models, this and a tenth more.
HELD_MIB, SHORT_HELD_MIB = 1024, 512
SILENT_ADDRESS = "127.0.0.7"
INFER_GRPC = "/inference.GRPCInferenceService/ModelInfer"
STREAM_GRPC = "/inference.GRPCInferenceService/ModelStreamInfer"
WATCH_GRPC = "/grpc.health.v1.Health/Watch"
# Holds a request for as long as its neighbours run; inputs may have any width.
WIDE = """slo_ms = 60000
max_batch = 1
latency_ms = [1500]
[[input]]
name = "x"
datatype = "FP32"
shape = [-1, -1]
[[output]]
name = "y"
datatype = "FP32"
shape = [-1, -1]
"""


async def attack(bench):
    """What takes long to be closed waits on a server of its own, while the others are attacked."""
    with bench.repository() as folder:
        repositories.emulated(folder, "plain", "slo_ms = 2000\nmax_batch = 4\nlatency_ms = [1, 1, 1, 1]\n")
        async with bench.server(folder, *repositories.EMULATED) as server:
            await connections(bench, server)
            waiting = asyncio.create_task(half_a_preface(server, 45))
            await memory(bench)
            await processes(bench)
            await load_storm(bench)
            await bench.row(server, "C11", "half an HTTP/2 preface, and nothing more", lambda: waiting)
            waiting.cancel()


async def memory(bench):
    """Each on a fresh server, because an allocator keeps what it once had."""
    many, held = (12, SHORT_HELD_MIB) if bench.short else (64, HELD_MIB)
    compressed = ["Content-Encoding: gzip"]
    calls = {
        "gzip bombs of 62 MiB each, at once": lambda server: flood(
            bench, server, "/v2/models/doubled/infer", bombs(), many, compressed),
        "`generate` calls of 61 KiB that inflate, at once": lambda server: flood(
            bench, server, "/v2/models/doubled/generate", generate_body(True), 8 if bench.short else 16, compressed),
        "`generate` calls of 60 MiB, at once": lambda server: flood(
            bench, server, "/v2/models/doubled/generate", generate_body(False), 4 if bench.short else 12, []),
        "texts of 1 MiB that are to be cut, at once": lambda server: flood(
            bench, server, "/v1/embeddings", texts("river " * ((1 << 20) // 6)), many, []),
        "lists of 2,048 texts, at once": lambda server: flood(
            bench, server, "/v1/embeddings", texts(["the river " * 20] * 2048), many, []),
        "texts of 60 MiB, at once": lambda server: flood(
            bench, server, "/v1/embeddings", gzip.compress(texts("river " * (10 << 20)), 6), many, compressed),
        "gRPC messages that never end, until nothing more fits": lambda server: unfinished(bench, server, many),
        "heads whose bodies never come": lambda server: heads(bench, server, 1200 if bench.short else 4000),
        "2,048 streams on 2 connections that ask nothing": lambda server: silent_streams(bench, server, STREAM_GRPC, 2, b""),
        "4,096 streams on 4 connections that watch": lambda server: silent_streams(bench, server, WATCH_GRPC, 4, bytes(5)),
        "answers of 4 MiB that nobody reads, over HTTP/2": lambda server: unread_streams(bench, server),
        "answers of 16 MiB that nobody reads, over HTTP/1": lambda server: unread_connections(bench, server),
    }
    with bench.repository() as folder:
        models.put(folder, "doubled", models.doubled())
        models.put(folder, "verbose", models.verbose())
        models.put_reader(folder, "reader")
        for what, call in calls.items():
            if bench.wanted("C9", what):
                async with bench.server(folder, *held_flags(held)) as server:
                    await bench.row(server, "C9", what, lambda: call(server), limit=100)
    what = "typed contents whose parameters say that they are binary"
    if bench.wanted("C9", what):
        with bench.repository() as folder:
            (folder / "wide" / "1").mkdir(parents=True)
            (folder / "wide" / "model.toml").write_text(WIDE)
            async with bench.server(folder, *repositories.EMULATED, *held_flags(held)) as server:
                await bench.row(server, "C9", what, lambda: typed(bench, server, 24 if bench.short else 48), limit=100)


def held_flags(held):
    """Loopback has no share unless one is set; the attackers are one peer, and their neighbour another."""
    return ["--drain-timeout-s", "5", "--max-held-mib", str(held), "--max-held-mib-per-peer", str(held // 2)]


def bombs():
    """JSON whose tensor is long, compressed a thousandfold."""
    return gzip.compress(b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[' + b"0," * (31 << 20), 6)


def generate_body(compressed):
    """Thirty million elements as nested text."""
    body = b'{"x":[[' + b"0," * (30 << 20) + b"0]]}"
    return gzip.compress(body, 6) if compressed else body


def texts(texts):
    """A call for vectors of texts, which are cut where they are too long."""
    return json.dumps({"model": "reader", "input": texts, "truncate": True}).encode()


async def bounded(bench, server, model="doubled"):
    """What every one of these must leave: a peak within the budget, and a server that answers others, with room to speak of."""
    client = bench.client(server, patience=30)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1 << 18], "parameters": {"binary_data_size": 1 << 20}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = [f"Inference-Header-Content-Length: {len(head)}"]
    status = await client.status(wire.post(f"/v2/models/{model}/infer", head + bytes(1 << 20), length), "neighbour")
    await client.close()
    grown, most = server.grown_mib(), 1.1 * (SHORT_HELD_MIB if bench.short else HELD_MIB)
    held = status == 200 and grown <= most
    return held, f"memory grew by {grown:.0f} MiB of at most {most:.0f}; a neighbour gets {status or 'no answer'}"


async def flood(bench, server, path, body, count, headers):
    """All at once; each client waits for its answer, whatever it is."""
    client, request = bench.client(server, patience=90), wire.post(path, body, headers)
    statuses = await asyncio.gather(*(client.status(request, "flood") for _ in range(count)))
    await client.close()
    held, seen = await bounded(bench, server)
    return held and 0 not in statuses, f"{tally(statuses)}; {seen}"


async def unfinished(bench, server, streams):
    """Each stream announces a size and sends all but the last byte, as far as the server lets it: large ones first, then ever
    smaller ones into what is left."""
    opened, sent = [], 0

    async def send(connection, message):
        return await connection.data(connection.headers(INFER_GRPC, "application/grpc"), message, patience=2)

    for size, count in ((60 << 20, streams), (8 << 20, 16), (1 << 20, 16), (1 << 17, 32), (1 << 14, 64), (1 << 12, 64)):
        message = b"\x00" + struct.pack(">I", size) + bytes(size - 1)
        more = [await http2.Connection.open(server.grpc, source=SILENT_ADDRESS) for _ in range(max(1, count // 8))]
        await asyncio.sleep(0.2)
        sent += sum(await asyncio.gather(*(send(connection, message) for connection in more for _ in range(8))))
        opened += more
    held, seen = await bounded(bench, server)
    for connection in opened:
        connection.close()
    return held, f"{sent >> 20} MiB sent; {seen}"


async def heads(bench, server, count):
    """As large as a body may be, and nothing of it."""
    request = b"POST /v2/models/doubled/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 67000000\r\n\r\n"
    opened = []
    for _ in range(count // 100):
        opened += await asyncio.gather(*(wire.connect(server.http, SILENT_ADDRESS) for _ in range(100)))
    for _, writer in opened:
        writer.write(request)
    await settled(server)
    held, seen = await bounded(bench, server)
    for _, writer in opened:
        writer.close()
    return held, f"{len(opened)} heads; {seen}"


async def silent_streams(bench, server, path, connections, message):
    """As many as a connection may have, each with its first message at most."""
    opened = [await http2.Connection.open(server.grpc, source=SILENT_ADDRESS) for _ in range(connections)]
    await asyncio.sleep(0.2)
    for connection in opened:
        for _ in range(1024):
            stream = connection.headers(path, "application/grpc")
            if message:
                await connection.data(stream, message, end=True, patience=2)
    await settled(server)
    held, seen = await bounded(bench, server)
    begun = sum(len(connection.received) for connection in opened)
    for connection in opened:
        connection.close()
    return held, f"{begun} streams begun to be answered; {seen}"


async def typed(bench, server, count):
    """32 MiB of numbers each, which take memory of their own once decoded, and wait for their turn."""
    size = 32 << 20
    request = service_pb2.ModelInferRequest(model_name="wide")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, size // 4])
    tensor.parameters["binary_data_size"].int64_param = size
    tensor.contents.CopyFrom(service_pb2.InferTensorContents.FromString(b"\x32" + http2.varint(size) + bytes(size)))
    message = request.SerializeToString()
    message = b"\x00" + struct.pack(">I", len(message)) + message
    opened = [await http2.Connection.open(server.grpc, source=SILENT_ADDRESS) for _ in range(count // 8)]
    await asyncio.sleep(0.2)

    async def send(connection):
        stream = connection.headers(INFER_GRPC, "application/grpc")
        return await connection.data(stream, message, end=True, patience=5)

    for connection in opened:
        for _ in range(8):
            await send(connection)
    held, seen = await bounded(bench, server, "wide")
    for connection in opened:
        connection.close()
    return held, seen


async def unread_streams(bench, server):
    """A window of nothing: answers are made and cannot be sent."""
    connection = await http2.Connection.open(server.http, window=0, source=SILENT_ADDRESS)
    body = wire.infer_body(("x", "FP32", [1, 1], [1.0]), parameters={"binary_data_output": True})
    for _ in range(160 if bench.short else 600):
        stream = connection.headers("/v2/models/verbose/infer", "application/json")
        await connection.data(stream, body, end=True, patience=2)
        await asyncio.sleep(0.002)
    await settled(server)
    held, seen = await bounded(bench, server)
    connection.close()
    return held, f"{len(connection.received)} streams begun to be answered; {seen}"


async def unread_connections(bench, server):
    """The kernel's buffers fill, then the server's."""
    request = wire.infer("verbose", ("x", "FP32", [4, 1], [1.0] * 4), parameters={"binary_data_output": True})
    writers = []
    for _ in range(100):
        reader, writer = await wire.connect(server.http, SILENT_ADDRESS)
        # Nothing is read from here on; transport-level reading must stop, too.
        writer.transport.pause_reading()
        writer.write(request)
        writers.append(writer)
    await settled(server)
    held, seen = await bounded(bench, server)
    for writer in writers:
        writer.close()
    return held, seen


async def settled(server):
    """Waits until memory no longer grows, within bounds."""
    last, still = 0.0, 0
    for _ in range(40):
        await asyncio.sleep(0.5)
        grows, last = server.peak_mib > last + 1, server.peak_mib
        still = 0 if grows else still + 1
        if still == 4:
            return


async def processes(bench):
    """Item 10: what a model does with a request, or by being loaded, never ends the server."""
    with bench.repository() as folder:
        models.put(folder, "doubled", models.doubled())
        for name, square in (("cube", False), ("square", True)):
            models.put(folder, name, models.allocator(square), models.BATCHED.replace("max_batch = 32", "max_batch = 2"))
        models.put(folder, "apart", models.doubled(), 'isolation = "process"\n' + models.BATCHED)
        models.put(folder, "stuck", models.doubled(), 'isolation = "process"\ntask_limit_s = 2\n' + models.BATCHED)
        greedy = 'isolation = "process"\nmemory_limit_mb = 512\n[[input]]\nname = "n"\nmin = 1\nmax = 11000\n'
        models.put(folder, "greedy", models.counter(), models.BATCHED.replace("max_batch = 32", "max_batch = 2") + greedy)
        async with bench.server(folder) as server:
            for name, value in (("cube", 2_000_000_000), ("square", 47_000)):
                what = f"ConstantOfShape of 8 GB from the request ({'[n, n]' if name == 'square' else '[n]'})"
                await bench.row(server, "C10", what, lambda: allocates(bench, server, name, value))
            what = "the process of a model's engine is killed, under load"
            await bench.row(server, "C10", what, lambda: engine_dies(bench, server))
            what = "a request takes down the process of its model's engine (Range of 484 MB, 512 MiB allowed in all)"
            await bench.row(server, "C10", what, lambda: engine_is_taken_down(bench, server))
            what = "the process of a model's engine is stopped in the midst of a batch"
            await bench.row(server, "C10", what, lambda: engine_hangs(bench, server))
            hostile = {
                "a chain of 6,000 Relu": models.relu_chain(6000),
                "30 nested If": models.nested_ifs(30),
                "5,000 nested If": models.nested_ifs(5000),
            }
            for at, (what, content) in enumerate(hostile.items()):
                await server.revive()
                models.put(folder, f"hostile{at}", content)
                await bench.row(server, "C10", f"{what}, loaded", lambda: loads(bench, server, f"hostile{at}"))
                # A server that is started anew must not fall over the same stone.
                remove(folder / f"hostile{at}")


def remove(folder):
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


async def engine_dies(bench, server):
    """Whoever was in it may send again; the neighbour knows nothing of it; the model is back."""
    over, answers = asyncio.Event(), {"apart": [], "doubled": []}

    async def ask(name):
        client = bench.client(server)
        while not over.is_set():
            answers[name].append(await client.ask(wire.infer(name, ("x", "FP32", [1, 2], [1, 2])), "engine dies"))
        await client.close()

    asking = [asyncio.create_task(ask(name)) for name in answers for _ in range(8)]
    killed = 0
    for _ in range(3):
        await asyncio.sleep(1.5)
        for process in server.children():
            os.kill(process, signal.SIGKILL)
            killed += 1
    await asyncio.sleep(1.5)
    over.set()
    await asyncio.gather(*asking)
    statuses = {name: [answer.status for answer in of_model] for name, of_model in answers.items()}
    refused = [answer for answer in answers["apart"] if answer.status == 503]
    retry = all("retry-after" in answer.headers for answer in refused)
    back = await comes_back(bench, server, "apart", ("x", "FP32", [1, 2], [1, 2]))
    held = killed >= 3 and back and retry and set(statuses["apart"]) <= {200, 503} and set(statuses["doubled"]) == {200}
    return held, f"{killed} killed: {tally(statuses['apart'])}; the neighbour: {tally(statuses['doubled'])}"


async def engine_is_taken_down(bench, server):
    client = bench.client(server)
    shape = [("n", "INT64", [1, 1], [value]) for value in (11000, 2)]
    status = await client.status(wire.infer("greedy", shape[0]), "taken down")
    neighbour = await client.status(wire.infer("doubled", ("x", "FP32", [1, 2], [1, 2])), "neighbour")
    await client.close()
    back = await comes_back(bench, server, "greedy", shape[1])
    return back and status == 503 and neighbour == 200, f"status {status}, a neighbour {neighbour}, back: {back}"


async def engine_hangs(bench, server):
    """Clients have their answers, be they errors; the neighbour waits, but not for ever; the model is back."""
    for process in server.children("stuck"):
        os.kill(process, signal.SIGSTOP)
    client = bench.client(server)
    begun = asyncio.get_running_loop().time()
    row = ("x", "FP32", [1, 2], [1, 2])
    status = await client.status(wire.infer("stuck", row), "stuck")
    took = asyncio.get_running_loop().time() - begun
    neighbour = await client.status(wire.infer("doubled", row), "neighbour")
    await client.close()
    back = await comes_back(bench, server, "stuck", row)
    return back and status == 503 and neighbour == 200, f"status {status} after {took:.1f} s, a neighbour {neighbour}, back: {back}"


async def comes_back(bench, server, name, tensor):
    """Whether a model answers again soon."""
    client = bench.client(server)
    for _ in range(100):
        if await client.status(wire.infer(name, tensor), "back") == 200:
            break
        await asyncio.sleep(0.2)
    else:
        return False
    await client.close()
    return True


async def allocates(bench, server, name, value):
    client = bench.client(server)
    served, reason = await is_served(client, name)
    seen = f"not served: {reason}"
    if served:
        status = await client.status(wire.infer(name, ("n", "INT64", [1, 1], [value])), "ConstantOfShape")
        seen = f"status {status or 'no answer'}"
    await client.close()
    held, neighbour = await bounded(bench, server)
    return held and (not served or status not in (0, 200)), f"{seen}; {neighbour}"


async def loads(bench, server, name):
    client = bench.client(server, patience=50)
    status = await client.status(wire.post(f"/v2/repository/models/{name}/load", b"{}"), "load")
    neighbour = await client.status(wire.infer("doubled", ("x", "FP32", [1, 2], [1, 2])), "neighbour")
    await client.close()
    return status != 0 and neighbour == 200, f"load: {status or 'no answer'}; a neighbour gets {neighbour or 'no answer'}"


async def connections(bench, server):
    """Item 11. Strangers come from an address of their own, so that a bound on each peer harms no well-behaved one."""
    for port in ("http", "grpc"):
        what = f"4,200 silent connections to the {port} port"
        await bench.row(server, "C11", what, lambda: silent(bench, server, port))


async def silent(bench, server, port):
    address = getattr(server, port)
    opened, health = [], "no answer"
    for _ in range(42):
        more = (wire.connect(address, SILENT_ADDRESS) for _ in range(100))
        opened += [stream for stream in await asyncio.gather(*more, return_exceptions=True) if isinstance(stream, tuple)]
    try:
        async with asyncio.timeout(12):
            while health != "200":
                health = await ask_health(bench, server, port)
                await asyncio.sleep(0.2)
    except (TimeoutError, OSError):
        pass
    metrics = bench.client(server, patience=5)
    metrics.address = server.metrics
    metrics_status = await metrics.status(wire.get("/metrics"), "metrics")
    await metrics.close()
    for _, writer in opened:
        writer.close()
    return health == "200" and metrics_status == 200, f"{len(opened)} opened; health: {health}, metrics: {metrics_status}"


async def ask_health(bench, server, port):
    """Whether a stranger to all this is served; it is owed no answer while it is not even accepted."""
    if port == "grpc":
        client = grpc_client.InferenceServerClient(server.grpc)
        try:
            return "200" if await client.is_server_live() else "not live"
        finally:
            await client.close()
    reader, writer = await wire.connect(server.http)
    writer.write(wire.get("/v2/health/live"))
    try:
        return str((await wire.read_answer(reader)).status)
    finally:
        writer.close()


async def half_a_preface(server, limit):
    """Closed in bounded time, on both ports."""
    took = {}
    loop = asyncio.get_running_loop()
    begun = loop.time()

    async def one(name, address, content):
        reader, writer = await wire.connect(address, "127.0.0.6")
        writer.write(content)
        try:
            async with asyncio.timeout(limit):
                while await reader.read(4096):
                    pass
            took[name] = loop.time() - begun
        except ConnectionError:
            took[name] = loop.time() - begun
        except TimeoutError:
            took[name] = None
        writer.close()

    half, head = http2.PREFACE[:12], b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: x\r\n"
    cases = {"HTTP": (server.http, half), "gRPC": (server.grpc, half), "half a head": (server.http, head)}
    await asyncio.gather(*(one(name, *case) for name, case in cases.items()))
    seen = ", ".join(f"{name}: {'open after ' + str(limit) if at is None else f'closed after {at:.0f}'} s" for name, at in took.items())
    return None not in took.values(), seen


async def load_storm(bench):
    """Item 12: loads whose clients have gone are not worked off one by one."""
    with bench.repository() as folder:
        measured = models.BATCHED.replace("alpha_ms = 0.5\nbeta_ms = 10\n", "")
        models.put(folder, "doubled", models.doubled())
        models.put(folder, "measured", repositories.affine(width=512, outputs=512), measured)
        async with bench.server(folder) as server:
            await bench.row(server, "C12", "calls of load whose clients leave", lambda: storm(bench, server), limit=100)


async def storm(bench, server):
    before, most, calls = server.threads(), 0, 150 if bench.short else 700
    request = wire.post("/v2/repository/models/measured/load", b"{}")
    for _ in range(calls):
        _, writer = await wire.connect(server.http)
        writer.write(request)
        await writer.drain()
        writer.close()
        most = max(most, server.threads())
    loop = asyncio.get_running_loop()
    begun, client = loop.time(), bench.client(server, patience=60)
    for _ in range(5):
        await asyncio.sleep(0.2)
        most = max(most, server.threads())
    neighbour = await client.status(wire.infer("doubled", ("x", "FP32", [1, 2], [1, 2])), "neighbour")
    answered = await client.status(request, "load after a storm")
    took = loop.time() - begun
    await client.close()
    held = neighbour == 200 and answered == 200 and most - before <= 32 and took < 20
    return held, f"{calls} calls: {most - before} more threads; the next load takes {took:.0f} s ({answered}), a neighbour gets {neighbour}"
