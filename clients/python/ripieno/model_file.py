"""Reads a `model.py`: which functions and classes it declares, how they are called, and what cannot be served.

Errors name the file, and the line where there is one. They are a line each, since clients of the server read them, too.
"""

import importlib.util
import inspect
import pathlib
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace

from ripieno import models, triton
from ripieno.arrays import CONVERSIONS
from ripieno.models import Declared, Tensor


class LoadError(Exception):
    """Why a model cannot be served, in one line."""


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
    own = [found for found in models.DECLARED if found.module == "model"]
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
        at = f":{cause.lineno}" if isinstance(cause, SyntaxError) else f":{lines[-1]}" if lines else ""
        raise LoadError(f"{path}{at}: {last_line(cause)}{advice(path, cause)}") from None


def advice(path, cause):
    """A way out of what happens to many, as a clause."""
    if isinstance(cause, ImportError) and "relative import" in str(cause):
        return "; files beside it are modules: write import NAME, or from NAME import"
    named = pathlib.Path(str(cause.filename)).name if isinstance(cause, FileNotFoundError) else ""
    if named and path.with_name(named).exists():
        return f"; it is beside {path.name}: open pathlib.Path(__file__).with_name({named!r})"
    return ""


def make_blocks(path, found, load):
    """The blocks of a function or a class, and what closes it."""
    name = found.name()
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
    for side, kind in ((found.inputs, "inputs"), (found.outputs, "outputs"), (state, "state")):
        if side is not None and not isinstance(side, Mapping):
            raise LoadError(f'{path}: {kind} of {name} is no dict; write for example {kind}={{"x": ripieno.f32(16)}}')
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


def last_line(cause):
    """The last line of a traceback."""
    lines = str(cause).strip().splitlines()
    return type(cause).__name__ + (f": {lines[0]}" if lines else "")
