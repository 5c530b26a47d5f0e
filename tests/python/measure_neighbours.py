"""A light model beside a heavy one without SLOs: how long a lone client of the light one waits.

    python tests/python/measure_neighbours.py BINARY [--policy deferred --policy unified] [--seconds 8]

BINARY is a release build of ripieno. Eight clients ask the heavy model (12 dense layers of 1,024) in closed loop, 32 rows at a time; one
asks the light one (one layer of 64) every 50 ms. Prints, for each policy, latencies of the light one alone and beside the heavy one, and
the answers of each heavy client.
"""

import argparse
import json
import pathlib
import tempfile
import threading
import time
import urllib.request

import numpy as np

from make_recordings import dense, save
from serving import Server

CLIENTS, ROWS, PAUSE_S = 8, 32, 0.05


def ask(server, model, rows):
    """The seconds that a request takes."""
    part = rows.tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": list(rows.shape), "parameters": {"binary_data_size": len(part)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    post = urllib.request.Request(f"http://{server.http}/v2/models/{model}/infer", data=head + part, headers=headers)
    begun = time.perf_counter()
    with urllib.request.urlopen(post, timeout=60) as reply:
        reply.read()
    return time.perf_counter() - begun


def light(server, seconds):
    """The median and the largest latency of the light model in milliseconds."""
    end, taken, row = time.perf_counter() + seconds, [], np.ones((1, 64), np.float32)
    while time.perf_counter() < end:
        taken.append(ask(server, "light", row) * 1e3)
        time.sleep(PAUSE_S)
    return f"p50 {np.median(taken):.1f} ms, p99 {np.percentile(taken, 99):.1f}, worst {max(taken):.1f} ({len(taken)} answers)"


def beside(server, seconds):
    stop, counts = threading.Event(), [0] * CLIENTS

    def client(at):
        rows = np.ones((ROWS, 1024), np.float32)
        while not stop.is_set():
            ask(server, "heavy", rows)
            counts[at] += 1

    threads = [threading.Thread(target=client, args=(at,)) for at in range(CLIENTS)]
    [thread.start() for thread in threads]
    try:
        return light(server, seconds), sorted(counts)
    finally:
        stop.set()
        [thread.join() for thread in threads]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        save(folder / "heavy", dense(np.random.default_rng(1), 12, 1024, ["batch", 1024]), "")
        save(folder / "light", dense(np.random.default_rng(2), 1, 64, ["batch", 64]), "")
        for policy in given.policy or ["deferred", "unified"]:
            flags = ("--engine", "onnxruntime", "--threads", "1", "--policy", policy)
            with Server(folder, *flags, binary=given.binary.resolve()) as server:
                print(f"{policy}: alone {light(server, given.seconds / 4)}")
                found, counts = beside(server, given.seconds)
                print(f"{policy}: beside {found}; heavy clients {counts}")


if __name__ == "__main__":
    main()
