"""`python -m ripieno.worker NAME`: the process of a model that is written in Python. The server starts it.

Standard input is a socket to the server. A worker loads one `model.py`, says which functions it declares, and runs one
batch after another. What the model prints goes to the server's log, bounded. An error of a batch is answered with its
last line, and the whole traceback is logged.
"""

import ctypes
import io
import os
import pathlib
import signal
import socket
import sys
import time
import traceback

import numpy as np

from ripieno import frames, models
from ripieno.model_file import LoadError, last_line, load_model
from ripieno.models import BadRequest, Tensor

# Begins the error of a batch that is its client's fault; the server knows it.
BAD_REQUEST = "bad request: "
MAX_MESSAGE = 500
# Characters a second that a model may log, and how many it may save up.
LOG_RATE, LOG_BURST = 16 << 10, 64 << 10
# Seconds for `close`, after which the process ends.
CLOSE_S = 4
PR_SET_PDEATHSIG = 1


class BoundedLog(io.TextIOBase):
    """Lines to the server's log, of which some are left out where there are too many."""

    def __init__(self, name):
        self.prefix, self.part = f"model {name}: ", ""
        self.budget, self.filled, self.dropped = LOG_BURST, time.monotonic(), 0

    def writable(self):
        return True

    def write(self, data):
        lines = (self.part + data[-LOG_BURST:]).split("\n")
        self.dropped += max(0, len(data) - LOG_BURST)
        self.part = lines.pop()[-LOG_BURST:]
        self.put(lines)
        return len(data)

    def put(self, lines):
        now = time.monotonic()
        self.budget = min(LOG_BURST, self.budget + int((now - self.filled) * LOG_RATE))
        self.filled, kept = now, []
        for line in lines:
            if len(line) > self.budget:
                self.dropped += len(line)
                continue
            if self.dropped:
                kept.append(f"({self.dropped} characters were left out)")
                self.dropped = 0
            self.budget -= len(line)
            kept.append(line)
        if kept:
            os.write(2, "".join(f"{self.prefix}{line}\n" for line in kept).encode("utf-8", "replace"))


class Load:
    """The server's request to load a model."""

    def __init__(self, name, data):
        self.name = name
        self.path, self.unbatched, self.memory_limit, self.device, self.protocol = "", False, 0, "cpu", 0
        self.inputs, self.outputs = [], []
        for tag, value in frames.fields(data):
            if tag == 5:
                self.unbatched = bool(value)
            elif tag == 6:
                self.path = frames.text(dict(frames.fields(value))[2])
            elif tag == 7:
                self.memory_limit = value
            elif tag == 8:
                self.device = f"cuda:{dict(frames.fields(value)).get(1, 0)}"
            elif tag == 10:
                self.read_python(value)

    def read_python(self, data):
        for tag, value in frames.fields(data):
            if tag == 1:
                self.protocol = value
            elif tag in (2, 3):
                (self.inputs if tag == 2 else self.outputs).append(frames.read_declared(value))

    def configured(self, side):
        """The tensors that the model's configuration declares. Where requests do not share batches, they have all
        dimensions of the configuration."""
        if self.unbatched:
            return {name: Tensor(datatype, tuple(sizes), batched=False) for name, datatype, sizes in side}
        return {name: Tensor(datatype, tuple(sizes[1:])) for name, datatype, sizes in side}


def named(block, given):
    """The outputs of a function by name: it returns a dict, a tuple in their order, or the only one."""
    names = list(block.outputs)
    if given is None:
        raise ValueError(f"{block.name} returned None; return {', '.join(names)}")
    if isinstance(given, dict):
        if missing := next((name for name in names if name not in given), None):
            raise ValueError(f"{block.shown(missing)} is missing; it returned {', '.join(map(str, given)) or 'nothing'}")
        return given
    if isinstance(given, tuple) or (isinstance(given, list) and len(names) > 1):
        if len(given) != len(names):
            raise ValueError(f"{block.name} returned {len(given)} arrays for its outputs {', '.join(names)}")
        return dict(zip(names, given))
    if len(names) > 1:
        raise ValueError(f"{block.name} returned one array for its outputs {', '.join(names)}")
    return {names[0]: given}


def checked(block, name, array, rows):
    """An output as it is declared. Numbers are cast where their kind stays; shapes never are. `rows` is None for a
    request that is alone, which may give any number of rows."""
    tensor = block.outputs[name]
    shape = tensor.dims() if rows is None else (rows, *tensor.shape)
    fits = array.ndim == len(shape) and all(said in (-1, size) for said, size in zip(shape, array.shape))
    if not fits:
        said = f"[{', '.join(map(str, shape))}]"
        raise ValueError(f"{block.shown(name)} has the shape {list(array.shape)}, not {said}")
    kind = frames.TYPES[models.DATATYPES.index(tensor.datatype)]
    if kind is None:
        if array.dtype.kind not in "USO":
            raise TypeError(f"{block.shown(name)} is {array.dtype}, not strings")
    elif array.dtype != kind:
        if array.dtype.name == "bfloat16" and tensor.datatype == "BF16":
            array = array.view(np.uint16)
        elif not np.can_cast(array.dtype, kind, "same_kind"):
            raise TypeError(f"{block.shown(name)} is {array.dtype}, not {tensor.datatype}")
        array = array.astype(kind, copy=False)
    return tensor.datatype, array


def run_batch(connection, model, load, data):
    """Runs a batch. Returns the parts of the reply."""
    at, rows, batch, alone, inputs = 0, 0, 0, False, {}
    for tag, value in frames.fields(data):
        if tag == 1:
            at = value
        elif tag == 2:
            rows = value
        elif tag == 3:
            name, array = connection.tensor(value)
            inputs[name] = array[0] if load.unbatched else array
        elif tag == 4:
            batch = value
        elif tag == 5:
            alone = bool(value)
    try:
        block = model.blocks[at]
        given = named(block, block.tensors.enter(block.call, inputs))
        rows, outputs = None if load.unbatched or alone else rows, []
        for name in block.outputs:
            datatype, array = checked(block, name, block.tensors.leave(given[name]), rows)
            outputs.append((name, datatype, array[None] if load.unbatched else array))
        return [*connection.pack(outputs), frames.whole(3, batch)]
    except BadRequest as cause:
        return [error(BAD_REQUEST + (str(cause) or "the model refuses it")), frames.whole(3, batch)]
    except BaseException as cause:
        traceback.print_exc()
        return [error(last_line(cause)), frames.whole(3, batch)]


def error(message):
    line = " ".join(message.split())
    return frames.sized(1, line[:MAX_MESSAGE].encode("utf-8", "replace"))


def begin(name):
    """Takes the socket from standard input, which the model must not read, and ties the process to the server."""
    own = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout = sys.stderr = BoundedLog(name)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            # When memory runs out, the system ends this process before the server.
            pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
        except OSError:
            pass
    held = guard(own)

    def let_go():
        os.close(own)
        os.close(held)

    # What the model forks must hold neither the connection nor the guard's pipe.
    os.register_at_fork(after_in_child=let_go)
    return socket.socket(fileno=own)


def guard(own):
    """Starts a process that kills the group when this one has ended: what the model has forked ends, too, if the
    server is killed. It ends with the writing end of a pipe, which is returned. It is no child of this process, so a
    model that waits for its children does not wait for it."""
    until, held = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.close(own)
            os.close(held)
            os.read(until, 1)
            os.killpg(0, signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(until)
    return held


def limit(size):
    if size:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def serve(name):
    stream = begin(name)
    _, fds, _, _ = socket.recv_fds(stream, 1, 2)
    connection = frames.Connection(stream, fds)
    data = connection.receive()
    if data is None:
        return
    load = Load(name, data)
    try:
        if load.protocol != frames.PROTOCOL:
            raise LoadError(
                f"the server speaks version {load.protocol} of the protocol, and the package ripieno of {sys.executable} "
                f"version {frames.PROTOCOL}; install the same version of both"
            )
        limit(load.memory_limit)
        model = load_model(load)
    except LoadError as cause:
        return connection.send(error(str(cause)))
    connection.send(frames.sized(4, frames.declaration(model.blocks, model.max_length, model.max_steps)))
    while (data := connection.receive()) is not None:
        connection.send(*run_batch(connection, model, load, data))
    if model.close:
        # Ends the process if closing hangs, wherever it does.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CLOSE_S)
        model.close()


if __name__ == "__main__":
    try:
        serve(sys.argv[1] if len(sys.argv) > 1 else "model")
    except BaseException:
        traceback.print_exc()
    # Threads that the model has left behind do not hold the process.
    os._exit(0)
