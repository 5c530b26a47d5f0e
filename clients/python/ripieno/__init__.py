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

What the server refuses is a `Refused`, with its status, its text, and when to come again. A `Client` may be used from many
threads; each call that runs has a connection to itself.
"""

from importlib.metadata import PackageNotFoundError, version

from ripieno.aio import AsyncClient
from ripieno.client import Client, Refused, tree

try:
    __version__ = version("ripieno")
except PackageNotFoundError:  # used from a checkout
    __version__ = "0"

__all__ = ["AsyncClient", "Client", "Refused", "__version__", "tree"]
