"""What the page at /ui and the flight recorder cost, and whether the page says what /metrics says.

    python tests/python/measure_page.py [--binary FILE] [--rate R] [--rounds N] [--pages N]

`--binary` is a release build. The recorder's part is that of a sampling profiler (`perf`), and servers with and without it
are measured in turn; a page's part is the time of the threads that render it. Then the page's figures are held to /metrics,
and a thousand pages are opened and closed, with a recorder so small that it is full before.
"""

import argparse
import contextlib
import html
import os
import pathlib
import re
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

from serving import BINARY, Server, counted

MODEL = "slo_ms = 60\nalpha_ms = 0.05\nbeta_ms = 2\nmax_batch = 64\n"
NOW, DEVICES = "/ui/live", "/ui/live/devices?span=2"
VIEWS = [NOW, DEVICES, "/ui/live/model?name=m", "/ui/live/requests"]
SERVERS = {"neither recorder nor page": ["--flight-mib", "0", "--ui", "off"], "recorder alone": ["--ui", "off"], "both": []}


@contextlib.contextmanager
def served(binary, *flags):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "m" / "1").mkdir(parents=True)
        (folder / "m" / "model.toml").write_text(MODEL)
        with Server(folder, "--device", "emulated", "--devices", "2", *flags, binary=binary) as server:
            yield server


@contextlib.contextmanager
def loaded(binary, server, rate, seconds):
    command = [str(binary), "bench", server.http, "--model", "m", "--rate", str(rate), "--duration", str(seconds), "--warmup", "1"]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3)
        yield
    finally:
        bench.terminate()
        bench.wait()


class Viewer:
    """A page that is open: its stream of views, read as it comes."""

    def __init__(self, server, path):
        host, port = server.metrics.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {server.metrics}\r\n\r\n".encode())
        self.socket.setblocking(False)
        self.bytes = 0

    def read(self):
        with contextlib.suppress(BlockingIOError):
            while got := self.socket.recv(1 << 20):
                self.bytes += len(got)


def cpu_s(pid):
    """Processor time of its threads, of which none ends under a steady load."""
    return sum(int(each.read_text().split()[0]) for each in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def spell(server, seconds):
    """Processor time and requests of some seconds."""
    before, answered = cpu_s(server.process.pid), counted(server.scrape(), "ripieno_requests_total")
    begun = time.monotonic()
    time.sleep(seconds)
    used, span = cpu_s(server.process.pid) - before, time.monotonic() - begun
    answered = counted(server.scrape(), "ripieno_requests_total") - answered
    return {"us": used / answered * 1e6, "share": used / span * 100, "rate": answered / span}


def of_servers(binary, rate, rounds, seconds):
    """Servers in turn. Two processes of one kind differ by more than the recorder costs: see also `of_recorder`."""
    seen = {kind: [] for kind in SERVERS}
    for number in range(rounds):
        for kind in list(SERVERS)[:: 1 if number % 2 == 0 else -1]:
            with served(binary, *SERVERS[kind]) as server, loaded(binary, server, rate, seconds + 30):
                seen[kind].append(spell(server, seconds))
    for kind, each in seen.items():
        us = [one["us"] for one in each]
        rate = statistics.median(one["rate"] for one in each)
        print(f"{kind:26} {statistics.median(us):6.1f} µs a request at {rate:.0f}/s ({min(us):.1f} to {max(us):.1f})", flush=True)


def render_s(server):
    """Processor time of the threads that render views: what runs on tokio's workers while tensors do not need them."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    mine = [task for task in tasks.iterdir() if (task / "comm").read_text().startswith("tokio")]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in mine) / 1e9


def of_pages(binary, rate, seconds):
    """What an open page costs, by the threads that render it: whole servers vary by more."""
    with served(binary) as server, loaded(binary, server, rate, 600):
        for path in [None, *VIEWS]:
            viewers = [Viewer(server, path)] if path else []
            time.sleep(2)
            before, begun = render_s(server), time.monotonic()
            while time.monotonic() < begun + seconds:
                for viewer in viewers:
                    viewer.read()
                time.sleep(0.1)
            share = (render_s(server) - before) / (time.monotonic() - begun)
            print(f"{path or 'no page':26} {share:6.2%} of a core at {rate:.0f}/s", flush=True)
            for viewer in viewers:
                viewer.socket.close()


def of_recorder(binary, rate, seconds):
    """The recorder's part of a server's processor time, by the functions in which a sampling profiler finds it."""
    with tempfile.TemporaryDirectory() as folder, served(binary) as server, loaded(binary, server, rate, seconds + 60):
        data, pid = pathlib.Path(folder) / "perf.data", str(server.process.pid)
        share = spell(server, 3)["share"]
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "997", "-p", pid, "-o", data, "--", "sleep", str(seconds)]
        subprocess.run(record, check=True, stderr=subprocess.DEVNULL)
        report = ["perf", "report", "-i", data, "--stdio", "-q", "--sort", "symbol", "--no-inline"]
        text = subprocess.run(report, check=True, capture_output=True, text=True).stdout
        rows = re.findall(r"^\s*([\d.]+)%\s+\[.\] (.*?)(?:\s+- .*)?$", text, re.MULTILINE)
        found = sorted(((float(part), name.strip()) for part, name in rows if re.search("flight|Flight|postcard", name)), reverse=True)
        total = sum(part for part, _ in found)
        print(f"recorder: {total:.2f} % of the samples, {total * share / 100:.2f} % of a core; most in {found[:3]}", flush=True)


def text_of(server, path):
    with urllib.request.urlopen(f"http://{server.metrics}{path}", timeout=60) as reply:
        return reply.read().decode()


def values(binary, rate):
    """Holds the page's outcomes and rate under load to /metrics just before and after."""
    with served(binary) as server, loaded(binary, server, rate, 40):
        checked = 0
        begun, first = time.monotonic(), counted(server.scrape(), "ripieno_requests_total", outcome="ok")
        time.sleep(11)
        for _ in range(10):
            # The page shows the sample of the last second.
            before = server.scrape()
            time.sleep(1.1)
            page = html.unescape(text_of(server, "/ui/model?name=m"))
            after = server.scrape()
            shown = re.search(r'<th scope="row">in time</th><td class="number">([\d,]+)</td>', page)
            shown = int(shown[1].replace(",", ""))
            low, high = (counted(text, "ripieno_requests_total", outcome="ok") for text in (before, after))
            assert low <= shown <= high, f"the page says {shown}, /metrics {low} and then {high}"
            checked += 1
        mean = (high - first) / (time.monotonic() - begun)
        said = float(re.search(r"<dd[^>]*>\s*([\d,.]+)/s", page)[1].replace(",", ""))
        assert abs(said - mean) < 0.1 * mean, f"the page says {said}/s, /metrics {mean:.0f}/s"
        print(f"{checked} times the page's count lay between /metrics before and after; {said:.0f}/s and {mean:.0f}/s", flush=True)


def state(server):
    return server.resident_mib(), len(os.listdir(f"/proc/{server.process.pid}/task"))


def pages(binary, rate, count):
    """Memory and threads before and after pages that were opened and closed under load."""
    with served(binary, "--flight-mib", "4") as server, loaded(binary, server, rate, 300):
        def open_and_close(number):
            for _ in range(0, number, 40):
                viewers = [Viewer(server, VIEWS[at % 4]) for at in range(40)]
                time.sleep(0.5)
                for viewer in viewers:
                    viewer.read()
                    viewer.socket.close()
            # A history that no page used for ten seconds is dropped.
            time.sleep(14)

        time.sleep(20)
        for what, number in (("none", 0), ("as many as warm it up", 80), (f"{count}", count), (f"{count} more", count)):
            open_and_close(number)
            mib, threads = state(server)
            print(f"pages opened and closed: {what:22} {mib:6.1f} MiB, {threads} threads", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--only", choices=["recorder", "servers", "pages", "values", "leaks"])
    given = parser.parse_args()
    parts = {
        "recorder": lambda: of_recorder(given.binary, given.rate, 4 * given.seconds),
        "servers": lambda: of_servers(given.binary, given.rate, given.rounds, given.seconds),
        "pages": lambda: of_pages(given.binary, given.rate, 2 * given.seconds),
        "values": lambda: values(given.binary, given.rate / 5),
        "leaks": lambda: pages(given.binary, given.rate / 5, given.pages),
    }
    for name, part in parts.items():
        if given.only in (None, name):
            part()
