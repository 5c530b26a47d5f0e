"""A Python function in Ripieno, mosec and LitServe: cost of the crossing, and useful answers under the same open-loop load.

    python tests/python/measure_python.py BINARY [--rounds 3] [--seconds 5] [--what crossing,peers]

BINARY is a release build of ripieno; mosec and litserve come from the package index. The function is that of
measure_peers.py in NumPy on one thread: 24 dense layers of 1,024. An answer is useful if it is complete 100 ms after the
request was due. Ripieno has slo_ms = 100 and nothing else; mosec and LitServe have batches of up to 64 and a window of 2 ms.
The rates are shares of the highest rate that a batch of 64 could be computed at. Servers take turns at each rate.

The crossing is a function that returns its input: what Ripieno's own profile says of a batch, and the time of one request
of a client that waits for its answer. Beside it stands what four copies of the batch take: its rows are gathered, written to
shared memory, returned by NumPy into it, and read. The state is a step that returns its state.

`--pytriton PYTHON` names an interpreter that has nvidia-pytriton, which then takes part in the crossing.
"""

import argparse
import asyncio
import base64
import contextlib
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from measure_peers import LAYERS, WIDTH, Client, load
from serving import ROOT, Server

SLO_S, SHARES = 0.1, (0.5, 0.9, 1.2, 2)
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
FUNCTION = f"""
import numpy as np
random = np.random.default_rng(1)
LAYERS = [random.standard_normal(({WIDTH}, {WIDTH})).astype(np.float32) / 32 for _ in range({LAYERS})]

def function(x):
    for layer in LAYERS:
        x = np.maximum(x @ layer, 0)
    return x
"""
IDENTITY = "def function(x):\n    return x\n"
RIPIENO = """
import ripieno
from function import function

@ripieno.model(inputs={{"x": ripieno.f32({width})}}, outputs={{"y": ripieno.f32({width})}})
def serve(x):
    return function(x)
"""
STATE = """
import ripieno

@ripieno.model(inputs={{"x": ripieno.f32()}}, outputs={{"x": ripieno.f32()}}, state={{"h": ripieno.f32({width})}})
def serve(x, h):
    return x, h
"""
PYTRITON = """
import sys
import numpy as np
from function import function
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

@batch
def infer(x):
    return {"y": function(x)}

if __name__ == "__main__":
    port, width = map(int, sys.argv[1:])
    with Triton(config=TritonConfig(http_port=port, grpc_port=port + 1, metrics_port=port + 2)) as triton:
        tensor = lambda name: Tensor(name=name, dtype=np.float32, shape=(width,))
        settings = ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=2000))
        triton.bind(model_name="f", infer_func=infer, inputs=[tensor("x")], outputs=[tensor("y")], config=settings)
        triton.serve()
"""
MOSEC = """
import numpy as np
from function import function
from mosec import Server, Worker

class Model(Worker):
    def deserialize(self, data):
        return np.frombuffer(data, np.float32)

    def forward(self, rows):
        return list(function(np.stack(rows)))

    def serialize(self, row):
        return row.tobytes()

if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=1, max_batch_size=64, max_wait_time=2)
    server.run()
"""
LITSERVE = """
import base64, sys
import litserve, numpy as np
from function import function

class Api(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return np.frombuffer(base64.b64decode(request["x"]), np.float32)

    def predict(self, rows):
        return function(np.stack(rows)) if isinstance(rows, (list, np.ndarray)) else rows

    def unbatch(self, rows):
        return list(rows)

    def encode_response(self, row):
        return {"y": base64.b64encode(np.ascontiguousarray(row).tobytes()).decode()}

if __name__ == "__main__":
    api = Api(max_batch_size=64, batch_timeout=0.002)
    litserve.LitServer(api, accelerator="cpu", workers_per_device=1).run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error")
"""


def posts(port, width):
    """The bytes of one request to each server."""
    row = np.random.default_rng(1).standard_normal(width).astype(np.float32).tobytes()
    header = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],' % (width, len(row))
    header += b'"parameters":{"binary_data_output":true}}'
    encoded = b'{"x":"' + base64.b64encode(row) + b'"}'

    def post(path, body, extra=""):
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
        return head.encode() + body

    binary = post("/v2/models/f/infer", header + row, f"Inference-Header-Content-Length: {len(header)}\r\n")
    return {
        "ripieno": binary,
        "pytriton": binary,
        "mosec": post("/inference", row),
        "litserve": post("/predict", encoded, "Content-Type: application/json\r\n"),
    }


@contextlib.contextmanager
def peer(folder, name, code, port, width, arguments, python=sys.executable):
    program = folder / f"{name}_server.py"
    program.write_text(code)
    command = [python, str(program), *arguments]
    # In a session of its own, so that the processes that it starts in turn end with it.
    apart = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    server = subprocess.Popen(command, env={**os.environ, **THREADS, "PYTHONPATH": str(folder)}, **apart)
    try:
        asyncio.run(until_it_answers(name, port, width))
        yield
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


async def until_it_answers(name, port, width):
    client = Client(port, posts(port, width)[name])
    for _ in range(300):
        if await client.ask(time.perf_counter() + 60):
            return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"{name} does not answer")


@contextlib.contextmanager
def servers(binary, function, width, toml="", pytriton=None):
    """Ports of all servers with the function, and what Ripieno says of its model."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder = pathlib.Path(temporary)
        version = folder / "models" / "f" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(RIPIENO.format(width=width))
        for place in (version, folder):
            (place / "function.py").write_text(function)
        (folder / "models" / "f" / "model.toml").write_text(f'slo_ms = 100\npython = "{sys.executable}"\n{toml}')
        server = stack.enter_context(Server(folder / "models", "--threads", "1", binary=binary))
        mosec = ("--address", "127.0.0.1", "--port", "18423", "--capacity", "512", "--timeout", "4000")
        stack.enter_context(peer(folder, "mosec", MOSEC, 18423, width, mosec))
        stack.enter_context(peer(folder, "litserve", LITSERVE, 18424, width, ("18424",)))
        ports = {"ripieno": int(server.http.rsplit(":", 1)[1]), "mosec": 18423, "litserve": 18424}
        if pytriton:
            ports["pytriton"] = 18425
            stack.enter_context(peer(folder, "pytriton", PYTRITON, 18425, width, ("18425", str(width)), pytriton))
        yield ports, server.ready["models"][0]


async def one_after_another(port, request, seconds):
    client, took = Client(port, request), []
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds:
        due = time.perf_counter()
        assert await client.ask(due + 60)
        took.append(time.perf_counter() - due)
    return statistics.median(took) * 1e6


def copies(rows, width):
    """Microseconds of four copies of a batch, one of them row by row from the requests."""
    parts = [np.ones(width, np.float32) for _ in range(rows)]
    batch, other = np.zeros((rows, width), np.float32), np.ones((rows, width), np.float32)

    def act():
        np.stack(parts, out=batch)
        for _ in range(3):
            other[:] = batch

    took = []
    for _ in range(20):
        begun = time.perf_counter()
        act()
        took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1e6


def crossing(binary, seconds, pytriton):
    names = ["ripieno", "mosec", "litserve", *(["pytriton"] if pytriton else [])]
    print(f"| row | profile of a batch of 1, 8, 64 rows, in us | four copies of it | one request: {' | '.join(names)} |\n|---|---|---|{'---|' * len(names)}")
    for width in (1024, 153_600):
        with servers(binary, IDENTITY, width, "max_batch = 64\n", pytriton) as (ports, model):
            batch = [round(model["profile"]["latency_ms"][rows - 1] * 1000) for rows in (1, 8, 64)]
            single = [asyncio.run(one_after_another(port, posts(port, width)[name], seconds)) for name, port in ports.items()]
        four = ", ".join(f"{copies(rows, width):.0f}" for rows in (1, 8, 64))
        print(f"| {width * 4 >> 10} KiB | {', '.join(map(str, batch))} | {four} | {' | '.join(f'{us:.0f} us' for us in single)} |", flush=True)


def state(binary):
    print("| state | profile of a step of 1, 8, 64 rows, in us |\n|---|---|")
    for width in (1, 1024, 153_600):
        with tempfile.TemporaryDirectory() as temporary:
            version = pathlib.Path(temporary) / "f" / "1"
            version.mkdir(parents=True)
            (version / "model.py").write_text(STATE.format(width=width))
            (version.parent / "model.toml").write_text(f'slo_ms = 100\nmax_batch = 64\npython = "{sys.executable}"\n')
            with Server(temporary, "--threads", "1", binary=binary) as server:
                table = server.ready["models"][0]["blocks"][0]["latency_ms"]
        print(f"| {width * 4} bytes | {', '.join(str(round(table[rows - 1] * 1000)) for rows in (1, 8, 64))} |", flush=True)


def peers(binary, rounds, seconds):
    with servers(binary, FUNCTION, WIDTH) as (ports, model):
        table = model["profile"]["latency_ms"]
        peak = 1000 * max(rows / latency for rows, latency in enumerate(table, 1))
        rates, found = [share * peak for share in SHARES], {}
        for turn in range(rounds):
            for rate in rates:
                for name, port in ports.items():
                    useful = asyncio.run(load(port, posts(port, WIDTH)[name], rate, seconds, turn))
                    found.setdefault((name, rate), []).append(useful)
                    time.sleep(1)
    print(f"peak {peak:.0f}/s, largest batch {len(table)}; useful answers a second, median of {rounds} rounds, lowest and highest")
    print("| offered/s | " + " | ".join(f"{rate:.0f} ({share})" for rate, share in zip(rates, SHARES)) + " |\n|---|" + "---|" * len(rates))
    for name in ports:
        cells = [found[name, rate] for rate in rates]
        print(f"| {name} | " + " | ".join(f"{statistics.median(cell):.0f} ({min(cell):.0f}-{max(cell):.0f})" for cell in cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--what", default="crossing,state,peers")
    parser.add_argument("--pytriton", metavar="PYTHON")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT / "clients" / "python")
    before = processor_times()
    if "crossing" in given.what:
        crossing(given.binary.resolve(), given.seconds, given.pytriton)
    if "state" in given.what:
        state(given.binary.resolve())
    if "peers" in given.what:
        peers(given.binary.resolve(), given.rounds, given.seconds)
    spent = [after - earlier for after, earlier in zip(processor_times(), before)]
    print(f"steal {100 * spent[7] / sum(spent):.1f} %")


def processor_times():
    with open("/proc/stat") as stat:
        return [int(ticks) for ticks in stat.readline().split()[1:9]]


if __name__ == "__main__":
    main()
