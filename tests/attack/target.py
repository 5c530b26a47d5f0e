"""The server under attack: a process whose memory is watched, and which is killed before it takes more than it may.

The kernel bounds its address space, so that one huge allocation fails in the server and not on the machine. A thread
samples what is resident, because what is allocated piece by piece must be stopped as well, long before the bound.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import threading
import time

from serving import onnxruntime_library

ADDRESS_SPACE = 8 << 30
MOST_RESIDENT_MIB = 2600
SAMPLE_S = 0.02
READY_S = 120
STOP_S = 40
MIB = 1 << 20


class Target:
    """`ripieno serve` with flags; use it as an asynchronous context manager. `restart` brings it back if it died."""

    def __init__(self, binary, repository, *flags):
        self.command = [str(binary), "serve", str(repository), "--format", "json", *flags]
        for port in ("--http", "--grpc", "--metrics"):
            self.command += [port, "127.0.0.1:0"]
        self.process = None
        self.log = tempfile.TemporaryFile()

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *_):
        await asyncio.to_thread(self.stop)

    async def start(self):
        """Starts it and waits until it says where it listens."""
        environment = {**os.environ, "ORT_DYLIB_PATH": os.environ.get("ORT_DYLIB_PATH") or onnxruntime_library()}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": self.log}
        self.process = subprocess.Popen(self.command, env=environment, **pipes)
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        self.peak_mib, self.exceeded = 0.0, False
        threading.Thread(target=self._watch, args=(self.process,), daemon=True).start()
        line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), READY_S)
        if not line:
            raise RuntimeError(f"no server from {' '.join(self.command)}; its log ends: {self.log_tail()}")
        ready = json.loads(line)
        self.http, self.grpc, self.metrics = (ready[name] for name in ("http", "grpc", "metrics"))
        self.base_mib = self.resident_mib()

    def grown_mib(self):
        """How much more memory it ever had than when it was ready."""
        return self.peak_mib - self.base_mib

    @property
    def alive(self):
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    async def revive(self):
        """Starts it anew if an attack has ended it."""
        if not self.alive:
            self.process.stdout.close()
            await self.start()

    def obituary(self):
        """How it ended."""
        if self.exceeded:
            return f"it took more than {MOST_RESIDENT_MIB} MiB and was stopped"
        return f"the server ended with code {self.process.returncode}: {self.log_tail(2)}"

    def stop(self):
        """Terminates it and returns its exit code."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        return code

    def resident_mib(self):
        """Memory in use now."""
        with contextlib.suppress(OSError):
            pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            return pages * resource.getpagesize() / MIB
        return 0.0

    def children(self, model=""):
        """The processes that it has started and that run, or those of a model."""
        found = []
        for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, parent = status.read_text().rpartition(")")[2].split()[:2]
                words = (status.parent / "cmdline").read_bytes().split(b"\0")
                if int(parent) == self.process.pid and state != "Z" and (not model or model.encode() in words):
                    found.append(int(status.parent.name))
        return found

    def cpu_us(self):
        """Processor time that its threads have had, in microseconds."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000

    def threads(self):
        """How many threads it has."""
        with contextlib.suppress(OSError):
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
            return int(next(line for line in status.splitlines() if line.startswith("Threads:")).split()[1])
        return 0

    def log_tail(self, lines=6):
        """The last lines that it logged."""
        end = os.fstat(self.log.fileno()).st_size
        tail = os.pread(self.log.fileno(), 4096, max(0, end - 4096)).decode(errors="replace")
        return " | ".join(tail.splitlines()[-lines:])[-400:]

    def _watch(self, process):
        while process.poll() is None:
            now = self.resident_mib()
            self.peak_mib = max(self.peak_mib, now)
            if now > MOST_RESIDENT_MIB:
                self.exceeded = True
                process.kill()
                return
            time.sleep(SAMPLE_S)
