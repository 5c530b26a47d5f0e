"""Odd requests that no item names: each gets a plain answer, 200 or a refusal that says why; none is the server's failure."""

import asyncio
import math

import grpc
import tritonclient.grpc.service_pb2 as messages
import tritonclient.grpc.service_pb2_grpc as services

import models
import repositories
import wire
from bench import tally

PAIR = ("x", "FP32", [1, 2], [1.0, 2.0])


async def attack(bench):
    with bench.repository() as folder:
        models.put(folder, "doubled", models.doubled())
        models.put(folder, "lookup", models.lookup())
        for name in ("sentiment", "arithmetic"):
            settings = (repositories.DEMO / name / "model.toml").read_text()
            # Latencies are given, so that nothing has to be measured.
            given = settings.replace("[[block]]\n", "[[block]]\nalpha_ms = 0.01\nbeta_ms = 0.3\n")
            repositories.copy_demo(folder, name, given)
        async with bench.server(folder) as server:
            await bench.row(server, "odd", "odd requests over HTTP", lambda: plain(bench, server, odd_requests()))
            await bench.row(server, "odd", "odd numbers as the time limit", lambda: plain(bench, server, time_limits()))
            await bench.row(server, "odd", "odd trees and sequences", lambda: plain(bench, server, odd_walks()))
            await bench.row(server, "odd", "odd heads", lambda: plain(bench, server, odd_heads()))
            await bench.row(server, "odd", "many requests of one id at once", lambda: one_id(bench, server))
            await bench.row(server, "odd", "a gRPC stream of good and bad requests", lambda: stream(bench, server))
            await bench.row(server, "odd", "gRPC deadlines of nothing and of for ever", lambda: deadlines(bench, server))
            await bench.row(server, "odd", "a body that comes byte by byte", lambda: dribble(bench, server))


def odd_requests():
    many = [("x", "FP32", [1, 2], [1, 2])] * 300
    yield "no inputs", 400, wire.infer("doubled")
    yield "the input twice", 400, wire.infer("doubled", PAIR, PAIR)
    yield "300 inputs", 400, wire.infer("doubled", *many)
    yield "no rows", 400, wire.infer("doubled", ("x", "FP32", [0, 2], []))
    yield "no columns", (200, 400), wire.infer("doubled", ("x", "FP32", [1, 0], []))
    yield "a shape of nothing", 400, wire.infer("doubled", ("x", "FP32", [], [1]))
    yield "a huge shape", 400, wire.infer("doubled", ("x", "FP32", [2**62, 4], [1]))
    yield "a shape that wraps to 0", 400, wire.infer("doubled", ("x", "FP32", [2**32, 2**32], []))
    yield "a negative shape", 400, wire.infer("doubled", ("x", "FP32", [-1, -2], [1, 2]))
    yield "a wrong type", 400, wire.infer("doubled", ("x", "INT64", [1, 2], [1, 2]))
    yield "an unknown type", 400, wire.infer("doubled", ("x", "COMPLEX", [1, 2], [1, 2]))
    yield "infinite data", 400, wire.infer("doubled", ("x", "FP32", [1, 1], [1e39]))
    yield "an id of 1 MB", (200, 400), wire.infer("doubled", PAIR, id="i" * (1 << 20))
    yield "an id that is a number", 400, wire.infer("doubled", PAIR, id=7)
    yield "an id with control characters", 200, wire.infer("doubled", PAIR, id="\u0000\n\r\u001b[31m")
    yield "a priority of -1", (200, 400), wire.infer("doubled", PAIR, parameters={"priority": -1})
    yield "a priority of 2^64 - 1", (200, 400), wire.infer("doubled", PAIR, parameters={"priority": 2**64 - 1})
    yield "a priority of words", (200, 400), wire.infer("doubled", PAIR, parameters={"priority": "high"})
    yield "a negative id", (400, 500), wire.infer("lookup", ("id", "INT64", [1, 1], [-101]))
    yield "the least id", (400, 500), wire.infer("lookup", ("id", "INT64", [1, 1], [-(2**63)]))
    yield "an output twice", (200, 400), wire.infer("doubled", PAIR, outputs=[{"name": "y"}, {"name": "y"}])
    yield "an unknown output", 400, wire.infer("doubled", PAIR, outputs=[{"name": "z"}])
    yield "depth", 400, wire.post("/v2/models/doubled/infer", b'{"inputs":' + b"[" * 100_000)
    yield "not JSON", 400, wire.post("/v2/models/doubled/infer", b"\xff\xfe\x00")
    yield "nothing", 400, wire.post("/v2/models/doubled/infer", b"")


def time_limits():
    for value in (0, 1, -1, 2**63 - 1, 2**63, 2**64 - 1, 0.5, math.nan, math.inf, "5", None, True):
        body = wire.infer_body(PAIR, parameters={"timeout": value})
        yield f"a time limit of {value}", (200, 400, 504), wire.post("/v2/models/doubled/infer", body)
    beyond = wire.infer_body(PAIR, parameters={"timeout": 5}).replace(b"5}", b"18446744073709551616}")
    yield "a time limit of 2^64", (200, 400), wire.post("/v2/models/doubled/infer", beyond)


def odd_walks():
    tree = lambda children, tokens: wire.infer(
        "arithmetic",
        ("token", "INT64", [1, len(tokens)], tokens),
        ("children", "INT64", [1, len(children), 2], [number for pair in children for number in pair]),
    )
    yield "an empty sequence", 400, wire.infer("sentiment", ("token", "INT64", [1, 0], []))
    yield "a sequence too long", 400, wire.infer("sentiment", ("token", "INT64", [1, 100_000], [1] * 100_000))
    yield "unknown tokens", 400, wire.infer("sentiment", ("token", "INT64", [1, 2], [2**40, -1]))
    yield "an empty tree", 400, tree([], [])
    yield "a cycle", 400, tree([[1, -1], [0, -1]], [1, 1])
    yield "its own child", 400, tree([[0, -1]], [1])
    yield "children that are not there", 400, tree([[2**62, -(2**63)]], [1])
    yield "two roots", 400, tree([[-1, -1], [-1, -1]], [1, 1])
    yield "more children than nodes", 400, wire.infer(
        "arithmetic", ("token", "INT64", [1, 1], [1]), ("children", "INT64", [1, 2, 2], [-1] * 4))


def odd_heads():
    body = wire.infer_body(PAIR)
    path = "/v2/models/doubled/infer"
    with_length = lambda value: wire.post(path, body, [f"Inference-Header-Content-Length: {value}"])
    for value in ("-1", str(2**64), "x", str(len(body) + 1), "0", "1"):
        # None at all announces the raw bytes of the one input.
        yield f"a JSON length of {value}", (200, 400) if value == "0" else 400, with_length(value)
    yield "an unknown encoding", 415, wire.post(path, body, ["Content-Encoding: br"])
    yield "a false encoding", 400, wire.post(path, body, ["Content-Encoding: gzip"])
    yield "a path that climbs", (400, 404), wire.get("/v2/models/../../etc/passwd")
    yield "a path of percent signs", (400, 404), wire.get("/v2/models/%2e%2e%2f%00%ff/ready")
    yield "a version of 2^70", (400, 404), wire.get(f"/v2/models/doubled/versions/{2**70}/ready")
    yield "a wrong method", 405, wire.get(path)


async def plain(bench, server, requests):
    """Whatever comes, an answer of the class that was to be expected."""
    client, odd, count = bench.client(server), [], 0
    for what, expected, request in requests:
        status, count = await client.status(request, "odd requests"), count + 1
        if status not in (expected if isinstance(expected, tuple) else (expected,)):
            odd.append(f"{what}: {status or 'no answer'}")
    neighbour = await client.status(wire.infer("doubled", PAIR), "odd requests")
    await client.close()
    return not odd and neighbour == 200, f"{count - len(odd)} of {count} as they should be" + "".join(f"; {text}" for text in odd)


async def one_id(bench, server):
    """An id is the client's own affair, also if it is the same again and again."""
    client = bench.client(server)

    async def ask(number):
        answer = await client.ask(wire.infer("doubled", ("x", "FP32", [1, 1], [float(number)]), id="same"), "one id")
        return answer.status == 200 and answer.json()["id"] == "same" and answer.output("y") == [2.0 * number]

    right = await asyncio.gather(*(ask(number) for number in range(100)))
    await client.close()
    return all(right), f"{sum(right)} of 100 right"


def request_of(name, size, identity):
    request = messages.ModelInferRequest(model_name=name, id=identity)
    request.inputs.add(name="x", datatype="FP32", shape=[1, size])
    request.raw_input_contents.append(bytes(4 * size))
    return request


async def stream(bench, server):
    """Two hundred on one stream, every third bad: as many answers, each with the id of its own."""
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        requests = [request_of("nobody" if at % 3 == 0 else "doubled", 4, f"r{at}") for at in range(200)]
        bench.ledger.sent += len(requests)
        ids, errors = [], 0

        async def feed():
            for request in requests:
                yield request

        async with asyncio.timeout(30):
            async for message in services.GRPCInferenceServiceStub(channel).ModelStreamInfer(feed()):
                ids.append(message.infer_response.id)
                errors += bool(message.error_message)
    found = set(ids)
    bench.ledger.answered += len(found & {request.id for request in requests})
    bench.ledger.surplus += len(ids) - len(found)
    held = sorted(ids) == sorted(request.id for request in requests) and errors == 67
    return held, f"{len(ids)} answers of 200, {errors} of them errors, {len(ids) - len(found)} twice"


async def deadlines(bench, server):
    codes = []
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        stub = services.GRPCInferenceServiceStub(channel)
        for seconds in (1e-6, 1e-3, 1.0, 1e9, None):
            bench.ledger.sent += 1
            try:
                await stub.ModelInfer(request_of("doubled", 2, "d"), timeout=seconds)
                codes.append("OK")
            except grpc.aio.AioRpcError as error:
                codes.append(error.code().name)
            bench.ledger.answered += 1
    return set(codes) <= {"OK", "DEADLINE_EXCEEDED"} and codes[-2:] == ["OK", "OK"], tally(codes)


async def dribble(bench, server):
    """Forty bytes, one every 20 ms, and others are served meanwhile."""
    client = bench.client(server)
    request = wire.infer("doubled", PAIR)
    reader, writer = await wire.connect(server.http)
    bench.ledger.sent += 1
    statuses = []
    writer.write(request[:-40])
    for byte in request[-40:]:
        writer.write(bytes([byte]))
        await writer.drain()
        statuses.append(await client.status(request, "dribble"))
        await asyncio.sleep(0.02)
    answer = await asyncio.wait_for(wire.read_answer(reader), 10)
    bench.ledger.answered += 1
    writer.close()
    await client.close()
    return answer.status == 200 and set(statuses) == {200}, f"it gets {answer.status}; others: {tally(statuses)}"
