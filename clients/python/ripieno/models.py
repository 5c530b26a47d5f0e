"""Models written in Python: what a `model.py` says of its functions.

    import ripieno

    @ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(4)})
    def serve(x):  # x: [batch, 16]
        return x @ W

Shapes leave out the batch, which is the first dimension of every array. `None` is an open dimension, `ripieno.LENGTH`
the length of a request: requests of several lengths are padded to the longest of their batch.
"""

import inspect
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, overload

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

Target = TypeVar("Target", bound=Callable[..., Any])


class BadRequest(Exception):
    """The request is wrong, and not the model: its client gets status 400 and this message."""


@dataclass(frozen=True)
class Tensor:
    """Datatype and shape of an input or output, without the batch; -1 is an open dimension."""

    datatype: str
    shape: tuple[int, ...]
    length_dim: int = 0
    pad: float = 0.0
    initial: float = 0.0
    batched: bool = True

    def dims(self) -> tuple[int, ...]:
        """All dimensions, the batch first if there is one."""
        return (-1, *self.shape) if self.batched else self.shape

    def is_like(self, other: "Tensor") -> bool:
        """Whether one array fits both."""
        return (self.datatype, self.dims()) == (other.datatype, other.dims())


@dataclass
class Declared:
    """A function, or a class with `run` or with stages, as its file declares it."""

    target: Any
    inputs: Mapping[str, Tensor] | None
    outputs: Mapping[str, Tensor] | None
    tensors: str
    max_length: int = 0
    state: Mapping[str, Tensor] | None = None
    ended: str | None = None
    max_steps: int = 0
    # The module that declares it, which may take the function from another one.
    module: str = ""

    def name(self) -> str:
        """The name of the function or class."""
        of_what = getattr(self.target, "func", self.target)  # of a functools.partial
        return str(getattr(of_what, "__name__", type(of_what).__name__))


class Kind(Protocol):
    """A datatype, called with the dimensions behind the batch."""

    def __call__(self, *shape: int | str | None, pad: float = 0, initial: float = 0) -> Tensor: ...


def _kind(datatype: str) -> Kind:
    def tensor(*shape: Any, pad: float = 0, initial: float = 0) -> Tensor:
        lengths = [at for at, size in enumerate(shape, 1) if size == LENGTH]
        if len(lengths) > 1:
            raise TypeError("one dimension of a tensor can be LENGTH")
        sizes = tuple(-1 if size in (None, -1, LENGTH) else operator.index(size) for size in shape)
        if any(size < -1 for size in sizes):
            raise TypeError(f"{shape}: a size is a number, None or LENGTH")
        return Tensor(datatype, sizes, lengths[0] if lengths else 0, float(pad), float(initial))

    tensor.__doc__ = (
        f"A tensor of {datatype} with these dimensions behind the batch. `pad` fills up a LENGTH; a state begins as `initial`."
    )
    return tensor


bool_, u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64, string = map(_kind, DATATYPES)

# Everything that was declared, in the order of the file.
DECLARED: list[Declared] = []


@overload
def model(target: Target) -> Target: ...
@overload
def model(
    *,
    inputs: Mapping[str, Tensor] | None = None,
    outputs: Mapping[str, Tensor] | None = None,
    tensors: str = "numpy",
    max_length: int = 0,
    state: Mapping[str, Tensor] | None = None,
    ended: str | None = None,
    max_steps: int = 0,
) -> Callable[[Target], Target]: ...
def model(
    target: Any = None,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    outputs: Mapping[str, Tensor] | None = None,
    tensors: str = "numpy",
    max_length: int = 0,
    state: Mapping[str, Tensor] | None = None,
    ended: str | None = None,
    max_steps: int = 0,
) -> Any:
    """Declares a function over a batch, or a class with `load(device)`, `run(**inputs)` and `close()`, to be served.

    Several in one file are the blocks of a chain, in their order: arrays flow between them by name. `tensors` is what
    `run` gets and may return: "numpy", "torch" or "jax". `max_length` bounds the dimensions that are LENGTH.

    With `state`, a function is one step: it takes the arrays of the state and returns them anew. It runs for each
    element of a request, of which `max_length` bounds the number. With `ended`, it runs until the boolean array of that
    name is true for the request, at most `max_steps` times.
    """
    if tensors not in KINDS:
        raise TypeError(f"tensors={tensors!r}: use one of {', '.join(KINDS)}")
    _check_steps(state, ended, max_steps)
    module = str(sys._getframe(1).f_globals.get("__name__", ""))

    def declare(found: Any) -> Any:
        DECLARED.append(Declared(found, inputs, outputs, tensors, max_length, state, ended, max_steps, module))
        return found

    return declare if target is None else declare(target)


def stage(
    *,
    inputs: Mapping[str, Tensor] | None = None,
    outputs: Mapping[str, Tensor] | None = None,
    state: Mapping[str, Tensor] | None = None,
    ended: str | None = None,
    max_steps: int = 0,
) -> Callable[[Target], Target]:
    """Declares a method of a class under `model` as a block of a chain or a step, in the order of the class."""
    _check_steps(state, ended, max_steps)

    def declare(method: Any) -> Any:
        method.ripieno_stage = Declared(method, inputs, outputs, "numpy", 0, state, ended, max_steps)
        return method

    return declare


def _check_steps(state: Mapping[str, Tensor] | None, ended: str | None, max_steps: int) -> None:
    if ended is not None and not state:
        raise TypeError(f"ended={ended!r} is for a step: name the arrays that it carries on, as in state={{'h': ripieno.f32(16)}}")
    if ended is not None and max_steps < 1:
        raise TypeError(f"ended={ended!r} needs max_steps, the most steps of a request that does not end before")
    if ended is None and max_steps:
        raise TypeError("max_steps is for a step with ended; without it, a request has a step for each of its elements")
    if ended is not None and state and ended in state:
        raise TypeError(f"ended={ended!r} is a state; return the end as an array of its own")


def annotated(function: Any) -> tuple[dict[str, Tensor] | None, dict[str, Tensor] | None]:
    """The inputs and outputs that the annotations of a function give; None where they give none."""
    signature = inspect.signature(function, eval_str=True)
    inputs = {
        name: of.annotation for name, of in signature.parameters.items() if isinstance(of.annotation, Tensor)
    }
    given = signature.return_annotation
    outputs = {"output": given} if isinstance(given, Tensor) else given
    return inputs or None, outputs if isinstance(outputs, dict) else None
