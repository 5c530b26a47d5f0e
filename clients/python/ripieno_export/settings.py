"""`model.toml` of a model in cells: what runs on what, written the way `docs/reference/model-toml.md` describes it.

    write_settings(
        folder, walk="repeat", slo_ms=200, max_length=256,
        blocks=[Block("cell", {"token": "request", "h": "previous.h_next"})],
        outputs=[Output("state", "cell.h_next")],
    )

No PyTorch is needed here: cells that another framework exported are served the same.
"""

from dataclasses import dataclass, field
from pathlib import Path

WALKS = ("repeat", "stacked", "bidirectional", "encode-decode", "tree", "graph")


@dataclass
class Block:
    """A cell and where each of its inputs comes from: "request", "previous.OUT", "BLOCK.OUT", "childK.OUT", …"""

    name: str
    inputs: dict
    initial: dict = field(default_factory=dict)
    end: str | None = None
    once: bool = False
    priority: int | None = None
    max_batch: int | None = None
    batch_sizes: list | None = None

    @property
    def file(self):
        return f"{self.name}.onnx"


@dataclass
class Output:
    """What the client gets: "BLOCK.OUT" of the last step, or of every step stacked."""

    name: str
    source: str
    take: str = "last"


def write_settings(folder, *, walk, blocks, outputs, comment=None, **keys):
    """Writes `model.toml` into the model's folder. `keys` are the model's own, such as `slo_ms` and `max_length`;
    those that are None are left out."""
    if walk not in WALKS:
        raise ValueError(f"walk {walk!r}: must be one of {', '.join(WALKS)}")
    lines = [f"# {line}" for line in (comment or "").splitlines()]
    lines += [f"{key} = {_value(value)}" for key, value in {"walk": walk, **keys}.items() if value is not None]
    for block in blocks:
        lines += ["", *_block(block)]
    for output in outputs:
        lines += ["", "[[output]]", f"name = {_value(output.name)}", f"from = {_value(output.source)}"]
        lines += [f"take = {_value(output.take)}"]
    path = Path(folder) / "model.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def _block(block):
    keys = {"name": block.name, "priority": block.priority, "max_batch": block.max_batch}
    keys |= {"batch_sizes": block.batch_sizes, "end": block.end}
    lines = ["[[block]]", *(f"{key} = {_value(value)}" for key, value in keys.items() if value is not None)]
    if block.once:
        lines.append("once = true")
    for table, entries in (("inputs", block.inputs), ("initial", block.initial)):
        if entries:
            lines += [f"[block.{table}]", *(f"{key} = {_value(value)}" for key, value in entries.items())]
    return lines


def _value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
