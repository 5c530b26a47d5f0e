"""A cluster under load while a model is released, its settings change, and every process is replaced.

    python tests/python/measure_release.py [--binary FILE] [--next FILE] [--rate R] [--attempt]

Two schedulers, two frontends and four backends run on loopback; clients send to both frontends at a steady rate, and to
the other one where a frontend refuses a connection, as a load balancer would. Each request has rows that name it, and the
model returns them: so a lost, doubled or exchanged answer is seen. `--attempt` tries what clusters had before releases:
the backends and the schedulers are started anew.
"""

import argparse
import collections
import http.client
import json
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from serving import BINARY

DEADLINE_MS = 250
HANDED_OVER_S = 30


class Process:
    """A role on loopback; `said` is its first line."""

    def __init__(self, binary, folder, role, *flags):
        self.log = open(folder / f"{role}-{time.monotonic_ns()}.log", "wb")
        command = [str(binary), role, "--format", "json", *map(str, flags)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log)
        lines = queue.Queue()
        threading.Thread(target=lambda: lines.put(self.process.stdout.readline()), daemon=True).start()
        self.said = json.loads(lines.get(timeout=60))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.process.stdout.close()
        return code


def call(address, method, path, body=None, timeout=60):
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def until(what, ask, within=HANDED_OVER_S):
    begun = time.monotonic()
    while True:
        try:
            if ask():
                return time.monotonic() - begun
        except OSError:
            pass
        assert time.monotonic() - begun < within, f"never: {what}"
        time.sleep(0.02)


def free_ports(count):
    import socket

    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def write_model(repository, version, slo_ms, max_batch=8):
    """A model that returns its input; its batches are emulated, 2 ms and more."""
    folder = repository / "echo"
    (folder / version).mkdir(parents=True, exist_ok=True)
    tensor = "[[{}]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [-1, 2]\n"
    profile = f"alpha_ms = 0.1\nbeta_ms = 2\nslo_ms = {slo_ms}\nmax_batch = {max_batch}\n"
    (folder / "model.toml").write_text(profile + tensor.format("input") + tensor.format("output"))


class Load:
    """Requests at a steady rate, each answered once or counted as lost."""

    def __init__(self, frontends, rate):
        self.frontends, self.rate = frontends, rate
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.counts, self.phases = collections.Counter(), collections.defaultdict(collections.Counter)
        self.phase, self.failures = "steady", collections.Counter()
        self.threads = [threading.Thread(target=self.run, args=(at,), daemon=True) for at in range(8)]
        self.begun = time.monotonic()
        for thread in self.threads:
            thread.start()

    def run(self, own):
        connections, number = {}, own
        while not self.stopping.is_set():
            due = self.begun + number / self.rate
            time.sleep(max(0, due - time.monotonic()))
            outcome = self.ask(connections, number, due)
            with self.lock:
                self.phases[self.phase][outcome] += 1
                self.counts[outcome] += 1
            number += len(self.threads)

    def ask(self, connections, number, due):
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [number % 65536, number // 65536]}]})
        for attempt in range(4):
            at = (number + attempt) % len(self.frontends)
            address = self.frontends[at]
            connection = connections.get(address)
            fresh = connection is None
            if fresh:
                connection = connections[address] = http.client.HTTPConnection(address, timeout=10)
            try:
                connection.request("POST", "/v2/models/echo/infer", body)
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                connections.pop(address)
                # Refused, or closed before it took the request: a balancer sends it elsewhere. A request that meets the
                # end of a connection that was used before sees a reset.
                closed = isinstance(error, (ConnectionRefusedError, http.client.RemoteDisconnected, BrokenPipeError))
                if closed or isinstance(error, ConnectionResetError) and not fresh:
                    continue
                self.failures[repr(error)] += 1
                return "lost"
            if answer.status != 200:
                self.failures[f"{answer.status} {text[:80]!r}"] += 1
                return "refused" if answer.status in (429, 503, 504) else "lost"
            data = json.loads(text)["outputs"][0]["data"]
            if data != [number % 65536, number // 65536]:
                return "exchanged"
            return "late" if time.monotonic() > due + DEADLINE_MS / 1e3 else "good"
        self.failures["no frontend takes it"] += 1
        return "lost"

    def enter(self, phase):
        with self.lock:
            self.phase = phase

    def end(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
        return self.counts


class Cluster:
    def __init__(self, binary, folder):
        self.folder, self.repository = folder, folder / "models"
        write_model(self.repository, "1", DEADLINE_MS)
        ports = free_ports(12)
        self.control, self.http = ports[:2], ports[2:4]
        self.data, self.health = ports[4:6], ports[6:12]
        self.schedulers = [self.scheduler(binary, at) for at in range(2)]
        self.backends = [self.backend(binary, at) for at in range(4)]
        self.frontends = [self.frontend(binary, at) for at in range(2)]
        self.addresses = [f"127.0.0.1:{port}" for port in self.http]
        for address in self.addresses:
            until("ready", lambda address=address: call(address, "GET", "/v2/health/ready")[0] == 200)
        until("four devices", lambda: self.devices() == 4)

    def all(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.control)

    def scheduler(self, binary, at):
        flags = ["--listen", f"127.0.0.1:{self.control[at]}", "--metrics", "127.0.0.1:0", "--schedulers", self.all()]
        return Process(binary, self.folder, "scheduler", *flags, "--epoch", f"file:{self.folder}/epoch")

    def backend(self, binary, at):
        flags = ["--scheduler", self.all(), "--device", "emulated", "--metrics", f"127.0.0.1:{self.health[at]}"]
        return Process(binary, self.folder, "backend", self.repository, *flags, "--epoch", f"file:{self.folder}/epoch")

    def frontend(self, binary, at):
        flags = ["--http", f"127.0.0.1:{self.http[at]}", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        return Process(binary, self.folder, "frontend", *flags, "--data", f"127.0.0.1:{self.data[at]}", "--scheduler", self.all())

    def metric(self, name):
        """The sum of a metric over both schedulers."""
        total = 0
        for one in self.schedulers:
            text = call(one.said["metrics"], "GET", "/metrics")[1].decode()
            total = max(total, sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name)))
        return total

    def devices(self):
        return self.metric("ripieno_device_serving{")

    def release(self, address):
        status, text = call(address, "POST", "/v2/repository/models/echo/load", timeout=300)
        assert status == 200, text

    def versions(self, address):
        rows = json.loads(call(address, "POST", "/v2/repository/index")[1])
        return {row["version"] for row in rows if row["name"] == "echo" and row["state"] == "READY"}

    def replace_backends(self, binary):
        for at, one in enumerate(self.backends):
            assert one.stop() == 0
            self.backends[at] = self.backend(binary, at)
            until("it is taken", lambda at=at: call(f"127.0.0.1:{self.health[at]}", "GET", "/v2/health/ready")[0] == 200)
            until("four devices", lambda: self.devices() == 4)

    def replace_schedulers(self, binary):
        for at, one in enumerate(self.schedulers):
            assert one.stop() == 0
            self.schedulers[at] = self.scheduler(binary, at)
            metrics = self.schedulers[at].said["metrics"]
            until("it hears the primary", lambda metrics=metrics: call(metrics, "GET", "/v2/health/ready")[0] == 200)
            until("four devices", lambda: self.devices() == 4)
            time.sleep(1)

    def replace_frontends(self, binary):
        for at, one in enumerate(self.frontends):
            assert one.stop() == 0
            self.frontends[at] = self.frontend(binary, at)
            until("it serves", lambda at=at: call(self.addresses[at], "GET", "/v2/health/ready")[0] == 200)

    def stop(self):
        return [one.stop() for one in [*self.frontends, *self.backends, *self.schedulers]]


def released(cluster, load, binary):
    load.enter("a model is released")
    write_model(cluster.repository, "2", DEADLINE_MS)
    cluster.release(cluster.addresses[0])
    until("both frontends", lambda: all(cluster.versions(address) == {"2"} for address in cluster.addresses))
    time.sleep(4)
    load.enter("its settings change")
    write_model(cluster.repository, "2", DEADLINE_MS, max_batch=4)
    cluster.release(cluster.addresses[1])
    time.sleep(4)
    load.enter("backends are replaced")
    cluster.replace_backends(binary)
    load.enter("schedulers are replaced")
    cluster.replace_schedulers(binary)
    load.enter("frontends are replaced")
    cluster.replace_frontends(binary)


def attempted(cluster, load, binary):
    """As the guide said before: scale the backends to none, change the volume, start the schedulers anew, scale up."""
    load.enter("a model is released")
    write_model(cluster.repository, "2", DEADLINE_MS)
    assert all(one.stop() == 0 for one in cluster.backends)
    assert all(one.stop() == 0 for one in cluster.schedulers)
    cluster.schedulers = [cluster.scheduler(binary, at) for at in range(2)]
    cluster.backends = [cluster.backend(binary, at) for at in range(4)]
    until("four devices", lambda: cluster.devices() == 4)
    for address in cluster.addresses:
        until("ready", lambda address=address: call(address, "GET", "/v2/health/ready")[0] == 200)


def measure(binary=BINARY, following=None, rate=60, attempt=False, steady_s=5):
    """Counts of outcomes, in all and by phase."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # A file that is replaced while it runs, as an upgrade does.
        here = folder / "ripieno"
        shutil.copy(binary, here)
        cluster = Cluster(here, folder)
        load = Load(cluster.addresses, rate)
        time.sleep(steady_s)
        (attempted if attempt else released)(cluster, load, following or here)
        load.enter("afterwards")
        time.sleep(steady_s)
        counts = load.end()
        codes = cluster.stop()
        assert codes == [0] * len(codes), codes
        return {
            "counts": dict(counts),
            "phases": {name: dict(of) for name, of in load.phases.items()},
            "failures": dict(load.failures.most_common(5)),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--next", type=pathlib.Path)
    parser.add_argument("--rate", type=float, default=60)
    parser.add_argument("--attempt", action="store_true")
    given = parser.parse_args()
    print(json.dumps(measure(given.binary, given.next, given.rate, given.attempt), indent=1))
