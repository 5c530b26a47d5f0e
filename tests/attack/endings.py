"""Section C, item 13: every accepted request is answered, however the connection or the server ends."""

import asyncio
import http.client
import signal
import socket
import time

import numpy as np
import tritonclient.grpc.aio as grpc_client
from tritonclient.utils import InferenceServerException

import repositories
import wire
from bench import tally

X = ("x", "FP32", [1, 2], [1.0, 2.0])


async def attack(bench):
    with bench.repository() as folder:
        repositories.emulated(folder, "plain", "slo_ms = 5000\nmax_batch = 4\nlatency_ms = [50, 50, 50, 50]\n")
        repositories.emulated(folder, "slow", "slo_ms = 30000\nmax_batch = 1\nlatency_ms = [3500]\n")
        flags = [*repositories.EMULATED, "--drain-timeout-s", "1"]
        async with bench.server(folder, *flags) as server:
            await bench.row(server, "C13", "a client that half-closes after its request", lambda: half_close(bench, server, 1))
            await bench.row(server, "C13", "a pipeline of 8 that ends in a half-close", lambda: half_close(bench, server, 8))
            await bench.row(server, "C13", "an error before the body was read", lambda: early_error(bench, server))
            await bench.row(server, "C13", "SIGHUP", lambda: hang_up(bench, server))
            await bench.row(server, "C13", "reloads under load", lambda: reloads(bench, server))
        for protocol in ("HTTP", "gRPC"):
            async with bench.server(folder, *flags) as server:
                what = f"requests in flight when draining times out, over {protocol}"
                await bench.row(Finished(server), "C13", what, lambda: drain(bench, server, protocol))


class Finished:
    """A server that is meant to end: that it is dead afterwards is not held against it."""

    alive = True

    def __init__(self, server):
        self.revive = server.revive


async def half_close(bench, server, count):
    """All requests, then the end of the client's stream; as many answers, in order, then the end of the server's."""
    reader, writer = await wire.connect(server.http)
    bench.ledger.sent += count
    writer.write(b"".join(wire.infer("plain", X, id=f"r{at}") for at in range(count)))
    await writer.drain()
    writer.write_eof()
    ids = []
    try:
        async with asyncio.timeout(15):
            while len(ids) <= count:
                answer = await wire.read_answer(reader)
                ids.append(answer.json().get("id", f"status {answer.status}"))
    except (EOFError, OSError, TimeoutError) as error:
        ended = type(error).__name__
    else:
        ended = "one too many"
        bench.ledger.surplus += 1
    writer.close()
    bench.ledger.answered += min(len(ids), count)
    for _ in range(count - len(ids)):
        bench.ledger.miss("half-close", ended)
    return ids == [f"r{at}" for at in range(count)], f"{len(ids)} of {count} answers; the connection's end: {ended}"


async def early_error(bench, server):
    """8 MB for a model that is not there, sent to the end before anything is read, and another request on the connection."""
    bodies = wire.post("/v2/models/nobody/infer", b" " * (8 << 20)), wire.infer("plain", X)
    seen = [await asyncio.to_thread(early, bench, server, *bodies) for _ in range(5)]
    return set(seen) <= {"404, closed", "404, then 200"}, tally(seen)


def early(bench, server, large, small):
    """On a blocking socket: one whose peer closed while it wrote may still be read, as good client libraries do."""
    bench.ledger.sent += 1
    with socket.create_connection(wire.split(server.http), timeout=15) as stream:
        try:
            stream.sendall(large)
        except ConnectionError:
            pass
        try:
            first = http.client.HTTPResponse(stream, method="POST")
            first.begin()
            first.read()
            bench.ledger.answered += 1
            if first.will_close:
                return f"{first.status}, closed"
            bench.ledger.sent += 1
            stream.sendall(small)
            second = http.client.HTTPResponse(stream, method="POST")
            second.begin()
            bench.ledger.answered += 1
            return f"{first.status}, then {second.status}"
        except (OSError, http.client.HTTPException) as error:
            bench.ledger.miss("early error", type(error).__name__)
            return type(error).__name__


async def hang_up(bench, server):
    server.process.send_signal(signal.SIGHUP)
    await asyncio.sleep(1)
    if not server.alive:
        return False, "it ended"
    client = bench.client(server)
    status = await client.status(wire.infer("plain", X), "SIGHUP")
    await client.close()
    return status == 200, f"a request afterwards: {status}"


async def reloads(bench, server):
    """Load, again and again, while requests come."""
    client, busy = bench.client(server), True

    async def reload():
        statuses = []
        while busy:
            statuses.append(await client.status(wire.post("/v2/repository/models/plain/load", b"{}"), "reload"))
        return statuses

    reloading = asyncio.create_task(reload())
    times = [at * 0.03 for at in range(100)]
    answers = await wire.open_loop(client, wire.infer("plain", X), times, "reload")
    busy = False
    loads = await reloading
    await client.close()
    statuses = [status for _, status, _ in answers]
    return set(statuses) == {200} and set(loads) == {200}, f"requests: {tally(statuses)}; loads: {tally(loads)}"


async def drain(bench, server, protocol):
    """The device needs 3.5 s for each, draining lasts 1 s: an error is an answer, a cut connection is none."""
    asked = [asyncio.create_task(http_call(bench, server) if protocol == "HTTP" else grpc_call(bench, server)) for _ in range(4)]
    await asyncio.sleep(0.7)
    begun = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    statuses = await asyncio.gather(*asked)
    took = time.monotonic() - begun
    code = await asyncio.to_thread(server.stop)
    held = all(status in (200, 503, "OK", "UNAVAILABLE") for status in statuses) and took < 10
    return held, f"{tally(map(str, statuses))}; all {took:.1f} s after SIGTERM, exit code {code}"


async def http_call(bench, server):
    client = bench.client(server)
    status = await client.status(wire.infer("slow", X), "drain, HTTP")
    await client.close()
    return status


async def grpc_call(bench, server):
    client = grpc_client.InferenceServerClient(server.grpc)
    tensor = grpc_client.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1.0, 2.0]], np.float32))
    bench.ledger.sent += 1
    try:
        await client.infer("slow", [tensor])
        status = "OK"
    except InferenceServerException as error:
        # A stub makes UNAVAILABLE of a broken connection, too; only the server's own words tell that it answered.
        broken = any(word in error.message() for word in ("Socket closed", "recvmsg", "GOAWAY", "reset", "Connection", "RST_STREAM"))
        status = "cut: " + error.message()[:60] if broken else error.status().removeprefix("StatusCode.")
    if status.startswith("cut"):
        bench.ledger.miss("drain, gRPC", "cut")
    else:
        bench.ledger.answered += 1
    await client.close()
    return status
