"""A thin client of Ripieno, for Python's standard library and NumPy.

    from ripieno import Client

    with Client("localhost:8000") as client:
        answer = client.infer("digits", {"image": image}, deadline_ms=20)
        answer["logits"]

| method | what it does |
|---|---|
| `infer` | arrays in, arrays out; a sequence is one array of its own length |
| `start` | the same, not waited for: a `Future`, so that the server has something to batch |
| `stream` | a model in cells, each step of the answer as soon as it is there |
| `tree` | the inputs of a tree model, for `infer` and `start` |
| `embed`, `classify`, `rerank` | texts to models that have a tokenizer beside them |
| `ready`, `models`, `metadata`, `load`, `unload` | what a script asks of a server |

A model written in Python (`model.py` in a model folder) declares its function by `ripieno.model`; see
`ripieno.models`.

What the server refuses is a `Refused`, with its status, its text, and when to come again. A `Client` may be used from many
threads; each call that runs has a connection to itself.
"""

from importlib.metadata import PackageNotFoundError, version

from ripieno.aio import AsyncClient
from ripieno.client import Client, Refused, tree
from ripieno.models import (
    LENGTH,
    BadRequest,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    model,
    stage,
    string,
    u8,
    u16,
    u32,
    u64,
)

try:
    __version__ = version("ripieno")
except PackageNotFoundError:  # used from a checkout
    __version__ = "0"

__all__ = [
    "LENGTH",
    "AsyncClient",
    "BadRequest",
    "Client",
    "Refused",
    "__version__",
    "bf16",
    "bool_",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "model",
    "stage",
    "string",
    "tree",
    "u8",
    "u16",
    "u32",
    "u64",
]
