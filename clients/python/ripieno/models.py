"""Models written in Python: what a `model.py` says of its functions.

    import ripieno

    @ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(4)})
    def serve(x):  # x: [batch, 16]
        return x @ W

Shapes leave out the batch, which is the first dimension of every array. `None` is an open dimension, `ripieno.LENGTH`
the length of a request: requests of several lengths are padded to the longest of their batch.
"""

import inspect
from dataclasses import dataclass

# In the order of the protocol.
DATATYPES = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "BF16",
    "FP32",
    "FP64",
    "BYTES",
)
KINDS = ("numpy", "torch", "jax")

LENGTH = "length"


class BadRequest(Exception):
    """The request is wrong, and not the model: its client gets status 400 and this message."""


@dataclass(frozen=True)
class Tensor:
    """Datatype and shape of an input or output, without the batch; -1 is an open dimension."""

    datatype: str
    shape: tuple
    length_dim: int = 0
    pad: float = 0.0
    batched: bool = True

    def dims(self):
        """All dimensions, the batch first if there is one."""
        return (-1, *self.shape) if self.batched else self.shape


@dataclass
class Declared:
    """A function, or a class with `run` or with stages, as its file declares it."""

    target: object
    inputs: dict | None
    outputs: dict | None
    tensors: str
    max_length: int


def _kind(datatype):
    def tensor(*shape, pad=0):
        lengths = [at for at, size in enumerate(shape, 1) if size == LENGTH]
        if len(lengths) > 1:
            raise TypeError("one dimension of a tensor can be LENGTH")
        sizes = tuple(-1 if size in (None, -1, LENGTH) else int(size) for size in shape)
        if any(size < -1 for size in sizes):
            raise TypeError(f"{shape}: a size is a number, None or LENGTH")
        return Tensor(datatype, sizes, lengths[0] if lengths else 0, float(pad))

    tensor.__doc__ = f"A tensor of {datatype} with these dimensions behind the batch; `pad` fills up a LENGTH."
    return tensor


bool_, u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64, string = map(_kind, DATATYPES)

# Everything that was declared, in the order of the file.
DECLARED = []


def model(target=None, *, inputs=None, outputs=None, tensors="numpy", max_length=0):
    """Declares a function over a batch, or a class with `load(device)`, `run(**inputs)` and `close()`, to be served.

    Several in one file are the blocks of a chain, in their order: arrays flow between them by name. `tensors` is what
    `run` gets and may return: "numpy", "torch" or "jax". `max_length` bounds the dimensions that are LENGTH.
    """
    if tensors not in KINDS:
        raise TypeError(f"tensors={tensors!r}: use one of {', '.join(KINDS)}")

    def declare(found):
        DECLARED.append(Declared(found, inputs, outputs, tensors, max_length))
        return found

    return declare if target is None else declare(target)


def stage(*, inputs, outputs):
    """Declares a method of a class under `model` as a block of a chain, in the order of the class."""

    def declare(method):
        method.ripieno_stage = (inputs, outputs)
        return method

    return declare


def annotated(function):
    """The inputs and outputs that the annotations of a function give; None where they give none."""
    signature = inspect.signature(function, eval_str=True)
    inputs = {
        name: of.annotation for name, of in signature.parameters.items() if isinstance(of.annotation, Tensor)
    }
    given = signature.return_annotation
    outputs = {"output": given} if isinstance(given, Tensor) else given
    return inputs or None, outputs if isinstance(outputs, dict) else None
