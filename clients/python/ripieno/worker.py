"""`python -m ripieno.worker NAME`: the process of a model that is written in Python. The server starts it.

Standard input is a socket to the server. A worker loads one `model.py`, says which functions it declares, and runs one
batch after another. What the model prints goes to the server's log, bounded. An error of a batch is answered with its
last line, and the whole traceback is logged.
"""

import ctypes
import importlib.util
import inspect
import io
import os
import pathlib
import signal
import socket
import sys
import time
import traceback
from dataclasses import replace

import numpy as np

from ripieno import frames, models, triton
from ripieno.models import BadRequest, Declared, Tensor

# Begins the error of a batch that is its client's fault; the server knows it.
BAD_REQUEST = "bad request: "
MAX_MESSAGE = 500
# Characters a second that a model may log, and how many it may save up.
LOG_RATE, LOG_BURST = 16 << 10, 64 << 10
# Seconds for `close`, after which the process ends.
CLOSE_S = 4
PR_SET_PDEATHSIG = 1


class LoadError(Exception):
    """Why a model cannot be served, in one line."""


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


class Block:
    """A function of the model: how it is called, and what goes in and out. The state is an input and an output."""

    def __init__(self, name, inputs, outputs, call, tensors, state=None, ended=None):
        self.name, self.call, self.tensors = name, call, tensors
        self.state, self.ended = state or {}, ended
        self.inputs = {**inputs, **self.state}
        self.outputs = {**outputs, **self.state, **({ended: models.bool_()} if ended else {})}
        # What clients do not get.
        self.hidden = [name for name in self.outputs if name not in outputs]

    def shown(self, name):
        """An output in words."""
        if name == self.ended:
            return f"'{name}', the end of {self.name},"
        return f"{'state' if name in self.state else 'output'} '{name}' of {self.name}"


class Model:
    """What a `model.py` declares."""

    def __init__(self, blocks, declared=(), close=None):
        self.blocks, self.close = blocks, close
        self.max_length = max((found.max_length for found in declared), default=0)
        self.max_steps = max((found.max_steps for found in declared), default=0)


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


def load_model(load):
    """Imports the file of a model and loads what it declares."""
    path = pathlib.Path(load.path)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("model", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    triton.provide()
    run_user(path, lambda: spec.loader.exec_module(module))
    if hasattr(module, "TritonPythonModel"):
        return triton_model(path, module.TritonPythonModel, load)
    own = [found for found in models.DECLARED if getattr(found.target, "__module__", "") == "model"]
    if not own:
        raise LoadError(f"{path}: declares no model; decorate a function or a class with @ripieno.model")
    blocks, closers, stages = [], [], []
    for found in own:
        made, close = run_user(path, lambda found=found: make_blocks(path, found, load))
        blocks += made
        closers += [close] if close else []
        stages += stages_of(found.target).values()
    names = [block.name for block in blocks]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LoadError(f"{path}: two functions are called {twice}; rename one of them")
    if any(block.state for block in blocks):
        # Steps share batches by rows, or run one row at a time.
        load.unbatched = False
        for block in blocks:
            check_sizes(path, block)
    return Model(blocks, [*own, *stages], lambda: [close() for close in closers])


def stages_of(target):
    """The methods of a class that are declared as stages, by name."""
    if not inspect.isclass(target):
        return {}
    return {key: value.ripieno_stage for key, value in vars(target).items() if hasattr(value, "ripieno_stage")}


def check_sizes(path, block):
    """Refuses dimensions that vary in a file with steps, whose requests share batches at every step."""
    for kind, side in (("state", block.state), ("input", block.inputs), ("output", block.outputs)):
        for name, tensor in side.items():
            if tensor.length_dim:
                raise LoadError(f"{path}: {kind} '{name}' of {block.name}: a step takes one element; leave out LENGTH")
            if -1 in tensor.shape:
                raise LoadError(f"{path}: {kind} '{name}' of {block.name} has an open dimension, and steps have none; write its size")


def triton_model(path, kind, load):
    """The model of a file for Triton's Python backend. Its tensors are those of config.pbtxt."""
    inputs, outputs = load.configured(load.inputs), load.configured(load.outputs)
    if not inputs or not outputs:
        raise LoadError(f"{path}: TritonPythonModel needs the input and output of a config.pbtxt")
    make = lambda: triton.Adapter(kind, load.name, path.parent, inputs, outputs, load.unbatched, load.device)
    made = run_user(path, make)
    declared = Declared(made.run, inputs, outputs, "numpy")
    return Model([block(path, "execute", made.run, declared, None, load)], (), made.close)


def run_user(path, act):
    """Runs code of the model's file. Its error names the file and the line."""
    try:
        return act()
    except LoadError:
        raise
    except BaseException as cause:
        traceback.print_exc()
        lines = [frame.lineno for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == str(path)]
        at = cause.lineno if isinstance(cause, SyntaxError) else lines[-1] if lines else 1
        raise LoadError(f"{path}:{at}: {last_line(cause)}") from None


def make_blocks(path, found, load):
    """The blocks of a function or a class, and what closes it."""
    name = found.target.__name__
    if not inspect.isclass(found.target):
        return [block(path, name, found.target, found, found.target, load)], None
    stages = stages_of(found.target)
    if not stages and not hasattr(found.target, "run"):
        raise LoadError(f"{path}: class {name} has neither run nor methods with @ripieno.stage")
    made = found.target()
    if hasattr(made, "load"):
        made.load(load.device)
    close = getattr(made, "close", None)
    if not stages:
        return [block(path, name, made.run, found, made.run, load)], close
    tensors = found.tensors
    made_of = lambda key, stage: block(path, key, getattr(made, key), replace(stage, tensors=tensors), stage.target, load)
    return [made_of(key, stage) for key, stage in stages.items()], close


def block(path, name, call, found, annotated, load):
    inputs, outputs = models.annotated(annotated) if annotated else (None, None)
    state = found.state or {}
    if not state:
        inputs, outputs = inputs or load.configured(load.inputs), outputs or load.configured(load.outputs)
    inputs = {key: value for key, value in (found.inputs or inputs or {}).items() if key not in state}
    outputs = found.outputs or outputs or {}
    for side, kind in ((inputs, "inputs"), (outputs, "outputs"), (state, "state")):
        if not side and not state and kind != "state":
            raise LoadError(f'{path}: {name} declares no {kind}; write @ripieno.model({kind}={{"x": ripieno.f32(16)}})')
        if wrong := next((key for key, value in side.items() if not isinstance(value, Tensor)), None):
            raise LoadError(f"{path}: {kind} of {name}: {wrong!r} is no tensor; write for example ripieno.f32(16)")
        if started := next((key for key, value in side.items() if value.initial and side is not state), None):
            raise LoadError(f"{path}: {kind} of {name}: {started!r} has initial, which is for states")
    alike = {**state, **({found.ended: models.bool_()} if found.ended else {})}
    if differs := next((key for key in alike if key in outputs and not alike[key].is_like(outputs[key])), None):
        raise LoadError(f"{path}: output '{differs}' of {name} is also its state or end, but another tensor; rename one of them")
    check_call(path, name, call, [*inputs, *state])
    return Block(name, inputs, dict(outputs), call, CONVERSIONS[found.tensors](load.device), state, found.ended)


def check_call(path, name, call, inputs):
    """Refuses what cannot be called with the inputs, or returns no arrays."""
    if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise LoadError(f"{path}: {name} is async or yields; a model returns its outputs: write def and return")
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(**dict.fromkeys(inputs))
    except TypeError as cause:
        given = ", ".join(signature.parameters) or "nothing"
        raise LoadError(f"{path}: {name} takes {given}, but is called with {', '.join(inputs)}: {cause}") from None


class NumpyTensors:
    """Arrays as they are: views that the model cannot write."""

    def __init__(self, device):
        pass

    def enter(self, call, inputs):
        for array in inputs.values():
            array.flags.writeable = False
        return call(**inputs)

    def leave(self, value):
        return np.asarray(value)


class TorchTensors:
    """Tensors on the model's device. On the CPU they lie where the batch lies, and may be written."""

    def __init__(self, device):
        import torch

        self.torch, self.device = torch, torch.device(device)

    def upload(self, array):
        if array.dtype.kind == "O":
            return array
        if not array.flags.writeable:
            array = array.copy()
        tensor = self.torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def enter(self, call, inputs):
        with self.torch.inference_mode():
            return call(**{name: self.upload(array) for name, array in inputs.items()})

    def leave(self, value):
        if not isinstance(value, self.torch.Tensor):
            return np.asarray(value)
        value = value.detach().cpu()
        return (value.view(self.torch.uint16) if value.dtype == self.torch.bfloat16 else value).numpy()


class JaxTensors:
    """Arrays of JAX on its default device."""

    def __init__(self, device):
        import jax

        self.jax = jax

    def enter(self, call, inputs):
        place = {name: x if x.dtype.kind == "O" else self.jax.device_put(x) for name, x in inputs.items()}
        return call(**place)

    def leave(self, value):
        return np.asarray(value)


CONVERSIONS = {"numpy": NumpyTensors, "torch": TorchTensors, "jax": JaxTensors}


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


def last_line(cause):
    """The last line of a traceback."""
    lines = str(cause).strip().splitlines()
    return type(cause).__name__ + (f": {lines[0]}" if lines else "")


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
    # What the model forks must not hold the connection.
    os.register_at_fork(after_in_child=lambda: os.close(own))
    return socket.socket(fileno=own)


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
