"""What all parts share: the time that is left, how Ripieno is run, and the rows found so far."""

import contextlib
import json
import subprocess
import time

import serving

# A command that has begun may outlast its section by this long, but never the whole run.
GRACE_S = 45.0
# One that hangs costs this many times what its part takes, but at least some seconds.
PATIENCE, LEAST_S = 3, 45.0
# How much shorter a part is in a quick run.
QUICKER = 10


class TimedServer(serving.Server):
    """A server whose start and end wait no longer than the check has time."""

    def __init__(self, check, *arguments):
        super().__init__(*arguments, binary=check.binary)
        self.check = check

    @property
    def ready_s(self):
        # One that never gets ready leaves the other half to the rest of the section.
        return min(serving.READY_S, max(5.0, self.check.left() / 2), self.check.allowed())

    @property
    def stop_s(self):
        return min(serving.STOP_S, max(5.0, self.check.allowed()))


class Check:
    """Binary, device and folder of a run, its end on the monotonic clock, and the report that takes its rows."""

    def __init__(self, binary, device, quick, folder, library, report, ends):
        self.binary, self.device, self.quick, self.folder = binary, device, quick, folder
        self.library, self.report = library, report
        self.ends = self.until = self.part_ends = ends
        self._large = None

    @property
    def large(self):
        """The models of random weights; made when a section first needs them."""
        if self._large is None:
            import large

            self._large = large.LargeModels(self)
        return self._large

    def begin(self, seconds):
        """Begins a section that has so many seconds."""
        self.until, self.part_ends = min(self.ends, time.monotonic() + seconds), self.ends

    def left(self):
        """Seconds of the section that are left."""
        return self.until - time.monotonic()

    def allowed(self):
        """The most seconds that a command or a request may take."""
        ends = min(self.ends, self.part_ends) - time.monotonic()
        return max(1.0, min(ends, max(0.0, self.left()) + GRACE_S))

    def missing(self, seconds):
        """Why something that takes this long is left out; none if there is time for it."""
        seconds, left = seconds / (QUICKER if self.quick else 1), max(0.0, self.left())
        return f"not measured: it takes {seconds:.0f} s, and {left:.0f} s are left" if left < seconds else None

    def add(self, **row):
        """Adds a row, which is in the file from then on."""
        self.report.add({**row, "error": row.get("error") or ""})

    @contextlib.contextmanager
    def part(self, **known):
        """Runs one part. If it fails, the reason is a row; the rows that it added stay."""
        try:
            yield
        except Exception as cause:
            self.add(**known, error=f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:4000])

    def attempt(self, seconds, known, measure, *arguments):
        """Adds each row that `measure` yields, or why it is left out or fails."""
        if late := self.missing(seconds):
            self.add(**known, error=late)
            return
        outer = self.part_ends
        self.part_ends = min(self.ends, time.monotonic() + max(LEAST_S, PATIENCE * seconds))
        with self.part(**known):
            for row in measure(*arguments):
                self.add(**{**known, **row})
        self.part_ends = outer

    def flags(self, device):
        return ["--device", device, "--engine", "onnxruntime", "--onnxruntime", str(self.library)]

    def server(self, folder, *flags):
        return TimedServer(self, folder, *flags)

    def ripieno(self, *arguments):
        """The JSON that a command prints. Exit code 1 with it says that a part failed, and the JSON says which."""
        command, seconds = [str(self.binary), *map(str, arguments), "--format", "json"], self.allowed()
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"ripieno {arguments[0]}: it did not end within {seconds:.0f} s") from None
        if done.returncode in (0, 1):
            with contextlib.suppress(ValueError):
                return json.loads(done.stdout)
        raise RuntimeError(f"ripieno {arguments[0]}: exit code {done.returncode}: {done.stderr.strip()[-700:]}")
