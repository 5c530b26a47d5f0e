"""Ripieno beside mosec under the same open-loop load: the table of README.md.

    python tests/python/measure_peers.py BINARY [--rates 900,1500,1800,2200] [--rounds 2] [--seconds 5]

BINARY is a release build of ripieno; mosec comes from the package index. Both serve one model, 24 dense layers of 1,024 (50 MFLOP
a row, random weights), on one thread of ONNX Runtime, beside the load generator on the same machine. Servers take turns at each rate. An
answer is useful if it is complete 100 ms after the request was due. Ripieno has slo_ms = 100 and nothing else; mosec has batches of
up to 64 and a window of 2 ms.
"""

import argparse
import asyncio
import contextlib
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx

from make_recordings import dense, save
from serving import Server

WIDTH, LAYERS, SLO_S = 1024, 24, 0.1
MOSEC = """
import numpy as np, onnxruntime, sys
from mosec import Server, Worker

class Model(Worker):
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession({path!r}, options, providers=["CPUExecutionProvider"])

    def deserialize(self, data):
        return np.frombuffer(data, np.float32)

    def forward(self, rows):
        return list(self.session.run(None, {{"x": np.stack(rows)}})[0])

    def serialize(self, row):
        return row.tobytes()

if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=1, max_batch_size=64, max_wait_time=2)
    server.run()
"""


def requests(port):
    """The bytes of one request to either server, by name."""
    row = np.random.default_rng(1).standard_normal(WIDTH).astype(np.float32).tobytes()
    header = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],' % (WIDTH, len(row))
    header += b'"parameters":{"binary_data_output":true}}'

    def post(path, body, extra=""):
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
        return head.encode() + body

    extra = f"Inference-Header-Content-Length: {len(header)}\r\n"
    return {"ripieno": post("/v2/models/mlp/infer", header + row, extra), "mosec": post("/inference", row)}


class Client:
    """Keeps connections, each with one request at a time; opens one where none is free, up to 512."""

    def __init__(self, port, request):
        self.port, self.request, self.free, self.open = port, request, [], asyncio.Semaphore(512)

    async def ask(self, due, within=SLO_S):
        """Whether the request was answered well within so many seconds of the moment at which it was due."""
        async with self.open:
            try:
                reader, writer = self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(self.request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                self.free.append((reader, writer))
            except (OSError, asyncio.IncompleteReadError, StopIteration):
                return False
        return head.startswith(b"HTTP/1.1 200") and time.perf_counter() - due <= within


async def load(port, request, rate, seconds, seed, client=None, within=SLO_S):
    """Useful answers a second under Poisson arrivals."""
    client, draws, tasks = client or Client(port, request), random.Random(seed), []
    begun = due = time.perf_counter()
    while due < begun + seconds:
        due += draws.expovariate(rate)
        delay = due - time.perf_counter()
        if delay > 0.0005:
            await asyncio.sleep(delay)
        tasks.append(asyncio.ensure_future(client.ask(due, within)))
    return sum(await asyncio.wait_for(asyncio.gather(*tasks), 60)) / seconds


@contextlib.contextmanager
def mosec(model, port):
    program = model.parent / "mosec_server.py"
    program.write_text(MOSEC.format(path=str(model)))
    command = [sys.executable, str(program), "--address", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([*command, "--capacity", "512", "--timeout", "4000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(until_it_answers(port))
        yield
    finally:
        server.terminate()
        server.wait(30)


async def until_it_answers(port):
    for _ in range(300):
        client = Client(port, requests(port)["mosec"])
        if await client.ask(time.perf_counter() + 60):
            return
        await asyncio.sleep(0.2)
    raise RuntimeError("mosec does not answer")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--rates", default="900,1500,1800,2200")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    rates = [float(rate) for rate in given.rates.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        save(folder / "mlp", dense(np.random.default_rng(1), LAYERS, WIDTH, ["batch", WIDTH]), "slo_ms = 100\n")
        found = {}
        with (
            Server(folder, "--engine", "onnxruntime", "--threads", "1", binary=given.binary.resolve()) as server,
            mosec(folder / "mlp" / "1" / "model.onnx", 18423),
        ):
            ports = {"ripieno": int(server.http.rsplit(":", 1)[1]), "mosec": 18423}
            for turn in range(given.rounds):
                for rate in rates:
                    for name, port in ports.items():
                        useful = asyncio.run(load(port, requests(port)[name], rate, given.seconds, turn))
                        found.setdefault((name, rate), []).append(useful)
                        time.sleep(1)
    print("| offered/s | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |\n|---|" + "---|" * len(rates))
    for name in ("ripieno", "mosec"):
        cells = (f"{statistics.median(found[name, rate]):.0f}" for rate in rates)
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
