"""Whole models: a folder of cells and the `model.toml` that walks them, from the modules that were trained.

    export_recurrent("models/sentiment", rnn, embedding=embedding, head=head, output="logits")
    export_encode_decode("models/dates", encoder=(e1, rnn1), decoder=(e2, rnn2), head=head, start=2, end=3)
    export_tree("models/arithmetic", leaf=tree.leaf, internal=tree.internal, head=head, ...)

Each writes `FOLDER/1/*.onnx` and `FOLDER/model.toml`; `ripieno serve` takes the parent folder as it is. The modules
are copied, and neither their device nor their mode changes.
"""

import copy
from pathlib import Path

import torch
from torch import nn

from .cells import Layer, StepCell, export_cell
from .settings import Block, Output, write_settings


def export_recurrent(
    folder,
    rnn,
    *,
    embedding=None,
    head=None,
    input="token",
    output="output",
    take="last",
    version=1,
    slo_ms=200.0,
    max_length=512,
    **keys,
):
    """`nn.LSTM`, `nn.GRU` or `nn.RNN` over a sequence: stacked or not, or of one layer in both directions.

    `head` takes the last h, of both directions side by side as PyTorch has it, and its result is the answer; with
    `take="every"` it runs at every step and the answers are stacked. Without head the answer is h itself, of both
    directions as two tensors, "OUTPUT_forward" and "OUTPUT_backward". A head of several results wants as many names
    in `output`. Each layer is a cell of its own, so that layers run side by side.
    """
    _check_recurrent(rnn, head, take)
    files = _Files(folder, version)
    names = [output] if isinstance(output, str) else list(output)
    if rnn.bidirectional:
        blocks, outputs = _bidirectional(files, rnn, embedding, head, input, names, take)
    else:
        blocks, outputs = _stack(files, rnn, embedding, head, input, names, take)
    walk = "bidirectional" if rnn.bidirectional else "repeat" if rnn.num_layers == 1 else "stacked"
    return write_settings(
        folder, walk=walk, blocks=blocks, outputs=outputs, slo_ms=slo_ms, max_length=max_length, **keys
    )


def export_encode_decode(
    folder,
    *,
    encoder,
    decoder,
    head,
    start,
    end,
    input="token",
    output="tokens",
    version=1,
    slo_ms=200.0,
    max_length=512,
    extra_steps=None,
    max_steps=None,
    **keys,
):
    """Sequence to sequence: the decoder begins with the encoder's last state and the token `start`, is fed its own
    last token, and stops after `end` or at the limit.

    `encoder` and `decoder` are pairs (embedding, rnn) of the same kind, layers and hidden size; the encoder's embedding
    may be None, for sequences of vectors. `head` takes the decoder's h and gives a score for each token. Choosing the
    best one and looking up its embedding happen inside the decoder's cell.
    """
    if extra_steps is not None and max_steps is not None:
        raise ValueError("extra_steps and max_steps: give one of them")
    cells = [_one_direction(*half) for half in (encoder, decoder)]
    names, sizes = cells[0].state_names, [layer.hidden for layer in cells[0].layers]
    if names != cells[1].state_names or sizes != [layer.hidden for layer in cells[1].layers]:
        raise ValueError("encoder and decoder must be of one kind, with the same layers and hidden sizes")
    files = _Files(folder, version)
    element, states = cells[0].example()
    files.add("encoder", cells[0], {input: element, **states}, _next(names))
    step = _Decoder(cells[1], _ready(head), end)
    element, states = cells[1].example()
    files.add("decoder", step, {"token": element, **states}, [*_next(names), "token_next", "done"])
    previous = {name: f"previous.{name}_next" for name in names}
    blocks = [
        Block("encoder", {input: "request", **previous}),
        Block(
            "decoder",
            {"token": "previous.token_next", **previous},
            initial={"token": start, **{name: f"encoder.{name}_next" for name in names}},
            end="done",
        ),
    ]
    keys = {"slo_ms": slo_ms, "max_length": max_length, "extra_steps": extra_steps, "max_steps": max_steps, **keys}
    outputs = [Output(output, "decoder.token_next", "every")]
    return write_settings(folder, walk="encode-decode", blocks=blocks, outputs=outputs, **keys)


def export_tree(
    folder,
    *,
    leaf,
    internal,
    hidden,
    arity=2,
    states=("h", "c"),
    element=None,
    internal_element=True,
    head=None,
    input="token",
    output="output",
    version=1,
    slo_ms=200.0,
    max_length=255,
    **keys,
):
    """Cells of a tree: `leaf(element)` and `internal(element, states of child 0, states of child 1, …)`, both of which
    return the states, each [batch, hidden]. `TreeLstm` has such a pair.

    `element` is an example of what a node holds, with the batch first; INT64 codes by default. Cells whose internal
    nodes hold nothing take `internal_element=False`. `head` takes the root's first state; without it that is the
    answer.
    """
    files = _Files(folder, version)
    element = torch.zeros(2, dtype=torch.long) if element is None else element
    below = {f"{name}{child}": torch.full((len(element), hidden), 0.25) for child in range(arity) for name in states}
    own = {input: element} if internal_element else {}
    files.add("leaf", _ready(leaf), {input: element}, _next(states))
    files.add("internal", _ready(internal), {**own, **below}, _next(states))
    links = {f"{name}{child}": f"child{child}.{name}_next" for child in range(arity) for name in states}
    request = {input: "request"}
    blocks = [Block("leaf", request), Block("internal", {**(request if internal_element else {}), **links})]
    names = [output] if isinstance(output, str) else list(output)
    if head is None:
        outputs = [Output(names[0], f"root.{states[0]}_next")]
    else:
        files.add("head", _ready(head), {states[0]: torch.full((2, hidden), 0.25)}, names)
        blocks.append(Block("head", {states[0]: f"root.{states[0]}_next"}, once=True))
        outputs = [Output(name, f"head.{name}") for name in names]
    return write_settings(
        folder, walk="tree", blocks=blocks, outputs=outputs, slo_ms=slo_ms, max_length=max_length, **keys
    )


class _Files:
    """Where the cells go."""

    def __init__(self, folder, version):
        self.folder = Path(folder) / str(version)

    def add(self, name, module, inputs, outputs):
        export_cell(module, self.folder / f"{name}.onnx", inputs, outputs)


class _Decoder(nn.Module):
    """A step, the best token of its scores, and whether it is the last."""

    def __init__(self, step, head, end):
        super().__init__()
        self.step, self.head, self.end = step, head, end

    def forward(self, token, *states):
        new = self.step(token, *states)
        best = self.head(new[self.step.output_index]).argmax(dim=1)
        return *new, best, best == self.end


class _Headed(nn.Module):
    """A step with a head on its output."""

    def __init__(self, step, head):
        super().__init__()
        self.step, self.head = step, head

    def forward(self, element, *states):
        new = self.step(element, *states)
        answer = self.head(new[self.step.output_index])
        return *new, *([answer] if isinstance(answer, torch.Tensor) else answer)


class _BothWays(nn.Module):
    """A head on both directions side by side."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, forward, backward):
        return self.head(torch.cat([forward, backward], dim=1))


def _check_recurrent(rnn, head, take):
    if take not in ("last", "every"):
        raise ValueError(f"take {take!r}: must be 'last' or 'every'")
    if rnn.bidirectional and rnn.num_layers > 1:
        raise ValueError(
            "several layers in both directions cannot be exported: each direction of the second layer would need "
            "the other direction of the first to its end"
        )
    if rnn.bidirectional and head is not None and take == "every":
        raise ValueError("both directions with a head at every step: the head would need both ends; leave it out")


def _ready(module):
    return copy.deepcopy(module).cpu().float().eval()


def _next(names):
    return [f"{name}_next" for name in names]


def _one_direction(embedding, rnn):
    """All layers in one cell, as encoder and decoder have them."""
    if rnn.bidirectional:
        raise ValueError("an encoder or decoder in both directions cannot be exported")
    layers = [Layer(rnn, index) for index in range(rnn.num_layers)]
    return StepCell(layers, None if embedding is None else _ready(embedding))


def _stack(files, rnn, embedding, head, input, names, take):
    blocks, source = [], "request"
    for index in range(rnn.num_layers):
        last = index + 1 == rnn.num_layers
        first = index == 0
        step = StepCell([Layer(rnn, index)], _ready(embedding) if first and embedding is not None else None)
        block = "cell" if rnn.num_layers == 1 else f"layer{index}"
        element, states = step.example()
        wanted, module = _next(step.state_names), step
        if last and head is not None and take == "every":
            module, wanted = _Headed(step, _ready(head)), [*wanted, *names]
        element_name = input if first else "x"
        files.add(block, module, {element_name: element, **states}, wanted)
        links = {name: f"previous.{name}_next" for name in step.state_names}
        blocks.append(Block(block, {element_name: source, **links}))
        source = f"{block}.h_next"
    if head is None:
        return blocks, [Output(names[0], source, take)]
    if take == "every":
        return blocks, [Output(name, f"{block}.{name}", take) for name in names]
    files.add("head", _ready(head), {"h": states["h"]}, names)
    blocks.append(Block("head", {"h": source}, once=True))
    return blocks, [Output(name, f"head.{name}") for name in names]


def _bidirectional(files, rnn, embedding, head, input, names, take):
    blocks = []
    for direction in ("forward", "backward"):
        embed = None if embedding is None else _ready(embedding)
        step = StepCell([Layer(rnn, 0, backward=direction == "backward")], embed)
        element, states = step.example()
        files.add(direction, step, {input: element, **states}, _next(step.state_names))
        links = {name: f"previous.{name}_next" for name in step.state_names}
        blocks.append(Block(direction, {input: "request", **links}))
    if head is None:
        return blocks, [Output(f"{names[0]}_{way}", f"{way}.h_next", take) for way in ("forward", "backward")]
    sides = {way: states["h"] for way in ("forward", "backward")}
    files.add("head", _BothWays(_ready(head)), sides, names)
    blocks.append(Block("head", {way: f"{way}.h_next" for way in sides}, once=True))
    return blocks, [Output(name, f"head.{name}") for name in names]
