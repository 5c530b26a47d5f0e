"""A `ripieno serve` process: started on free ports, stopped by SIGTERM, which it must survive with exit code 0."""

import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("RIPIENO_TARGET", ROOT / "target"))
BINARY = TARGET / "debug" / "ripieno"
if BINARY.exists():
    # A build in the midst of the tests removes the file before it writes it anew: a second name of it stays.
    _LINKED = tempfile.TemporaryDirectory(prefix="tested-", dir=TARGET)
    os.link(BINARY, pathlib.Path(_LINKED.name, BINARY.name))
    BINARY = pathlib.Path(_LINKED.name, BINARY.name)

READY_S = 120
STOP_S = 60


class Server:
    """Use it as a context manager; `http`, `grpc` and `metrics` are addresses such as 127.0.0.1:41234.

    Its engine is the built-in one unless another is named, whatever is installed. It has `ready_s` to start and `stop_s` to end.
    """

    ready_s, stop_s = READY_S, STOP_S

    def __init__(self, repository, *flags, binary=BINARY):
        engine = () if "--engine" in flags else ("--engine", "cpu")
        self.command = [str(binary), "serve", str(repository), "--format", "json", *engine, *flags]
        for port in ("--http", "--grpc", "--metrics"):
            self.command += [port, "127.0.0.1:0"]
        self.log = tempfile.TemporaryFile()

    def __enter__(self):
        environment = {**os.environ, "ORT_DYLIB_PATH": os.environ.get("ORT_DYLIB_PATH") or onnxruntime_library()}
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, env=environment
        )
        try:
            self.ready = json.loads(self._first_line())
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.http, self.grpc, self.metrics = (self.ready[name] for name in ("http", "grpc", "metrics"))
        return self

    def __exit__(self, kind, error, trace):
        code = self.stop()
        if error is None:
            assert code == 0, f"exit code {code} after SIGTERM; the log ends:\n{self.log_tail()}"
        else:
            sys.stderr.write(f"the server's log ends:\n{self.log_tail()}\n")

    def terminate(self):
        """Asks it to drain and end."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        """Terminates it and returns its exit code; a server that does not end is killed, which is a failure."""
        if self.process.poll() is None:
            self.terminate()
        try:
            code = self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        return code

    def resident_mib(self):
        """Memory in use, as the kernel counts it."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    def scrape(self):
        """Its metrics, as Prometheus reads them."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=60) as reply:
            return reply.read().decode()

    def log_tail(self):
        self.log.seek(0)
        return "\n".join(self.log.read().decode(errors="replace").splitlines()[-30:])

    def _first_line(self):
        """The line on stdout that says that it is ready. The rest is read on, so that the pipe never fills."""
        lines = queue.Queue()

        def read():
            with contextlib.suppress(ValueError):
                for line in self.process.stdout:
                    lines.put(line)
            lines.put(b"")

        threading.Thread(target=read, daemon=True).start()
        try:
            line = lines.get(timeout=self.ready_s)
        except queue.Empty:
            line = b""
        assert line, f"no server from {' '.join(self.command)}; its log ends:\n{self.log_tail()}"
        return line


def onnxruntime_library():
    """The shared library inside the wheel; empty without one, which only engines of cells need."""
    try:
        import onnxruntime
    except ImportError:
        return ""

    folder = pathlib.Path(onnxruntime.__file__).parent / "capi"
    return str(next(path for path in folder.glob("libonnxruntime.*") if "providers" not in path.name))


def counted(text, series, **labels):
    """The sum of a series' samples in scraped metrics: of those that have these labels."""
    found = [line for line in text.splitlines() if re.match(rf"{series}[ {{]", line)]
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(label in line for label in wanted))
