"""Messages between the server and a worker: protobuf frames over a socket, and large tensors in shared memory.

The messages are those of every engine process of the server (`crates/executor/src/engines/isolated/protocol.rs`). They
are read and written here by hand, so that a worker needs NumPy only. Nothing is unpickled.
"""

import mmap
import os
import struct

import numpy as np

from ripieno.models import DATATYPES
from ripieno.tensors import DATATYPES as KINDS
from ripieno.tensors import element, read

PROTOCOL = 2
MAX_FRAME = 1 << 30
# As the server has them: which batches go through shared memory, and how tensors align there.
MIN_SHARED, MAX_SHARED = 64 << 10, 256 << 20
ALIGNMENT = 64
MIN_REGION = 1 << 20
RECEIVE = 1 << 16

TYPES = [None if name == "BYTES" else np.dtype(KINDS.get(name, np.uint16)).newbyteorder("<") for name in DATATYPES]


class ProtocolError(Exception):
    """What came is no message of this protocol."""


def fields(data):
    """The tags and values of a message: numbers, and views of its bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = varint(data, at)
        tag, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind == 1:
            (value,), at = struct.unpack_from("<d", data, at), at + 8
        else:
            raise ProtocolError(f"a field of kind {kind}")
        if at > end:
            raise ProtocolError("a field is cut short")
        yield tag, value


def varint(data, at):
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ProtocolError("a number of more than 64 bits")


def number(value):
    """A varint."""
    value &= (1 << 64) - 1
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def whole(tag, value):
    """A field with a number; zero is left out."""
    return number(tag << 3) + number(value) if value else b""


def double(tag, value):
    """A field with a double; zero is left out."""
    return number(tag << 3 | 1) + struct.pack("<d", value) if value else b""


def sized(tag, data):
    """A field with bytes."""
    return number(tag << 3 | 2) + number(len(data)) + data


def integers(data):
    """A packed list of signed numbers."""
    at, values = 0, []
    while at < len(data):
        value, at = varint(data, at)
        values.append(value - (1 << 64) if value >> 63 else value)
    return values


def text(data):
    return bytes(data).decode()


def read_declared(data):
    """Name, datatype and shape of a tensor that the model's configuration declares."""
    name, datatype, shape = described(dict(fields(data)))
    return name, DATATYPES[datatype], shape


def described(found):
    """Name, index of the datatype and shape: the first fields of every message of a tensor."""
    return text(found.get(1, b"")), found.get(2, 0), integers(found.get(3, b""))


def declared(name, tensor):
    """The message of a tensor that a file declares."""
    shape = b"".join(map(number, tensor.dims()))
    head = sized(1, name.encode()) + whole(2, DATATYPES.index(tensor.datatype)) + sized(3, shape)
    return head + whole(4, tensor.length_dim) + double(5, tensor.pad) + double(6, tensor.initial)


def declaration(blocks, max_length, max_steps):
    """The message of all blocks: name, inputs and outputs of each, and which of them are state or hidden."""
    parts = [whole(1, PROTOCOL)]
    for block in blocks:
        sides = ((2, block.inputs), (3, block.outputs))
        tensors = [sized(tag, declared(*item)) for tag, side in sides for item in side.items()]
        roles = ((4, block.state), (5, [block.ended] if block.ended else []), (6, block.hidden))
        names = [sized(tag, name.encode()) for tag, role in roles for name in role]
        parts.append(sized(2, sized(1, block.name.encode()) + b"".join(tensors + names)))
    return b"".join(parts) + whole(3, max_length) + whole(4, max_steps)


class Region:
    """Memory that both ends have mapped, and one of them writes. It grows and never shrinks."""

    def __init__(self, fd):
        self.fd, self.map = fd, None

    def reach(self, end):
        """The map, at least up to byte `end`."""
        if self.map is None or len(self.map) < end:
            size = min(os.fstat(self.fd).st_size, MAX_SHARED)
            if size < end:
                raise ProtocolError("a place beyond the shared memory")
            self.map = mmap.mmap(self.fd, size)
        return self.map

    def reserve(self, size):
        size = max(MIN_REGION, 1 << (size - 1).bit_length())
        if os.fstat(self.fd).st_size < size:
            os.ftruncate(self.fd, size)
        return self.reach(size)


class Connection:
    """The worker's end of the socket."""

    def __init__(self, socket, fds):
        self.socket, self.left = socket, b""
        # The server names the region that it writes first.
        self.inbound, self.outbound = map(Region, fds) if len(fds) == 2 else (None, None)

    def receive(self):
        """The next frame; None once the server has gone."""
        data = self.left
        while len(data) < 4:
            more = self.socket.recv(RECEIVE)
            if not more:
                return None
            data += more
        size = 4 + int.from_bytes(data[:4], "little")
        if size - 4 > MAX_FRAME:
            raise ProtocolError("a frame that is too large")
        if len(data) < size:
            whole_frame = bytearray(data)
            while len(whole_frame) < size:
                more = self.socket.recv(min(size - len(whole_frame), 1 << 20))
                if not more:
                    return None
                whole_frame += more
            data = bytes(whole_frame)
        self.left = data[size:]
        return data[4:size]

    def send(self, *parts):
        size = sum(map(len, parts))
        if size > MAX_FRAME:
            raise ValueError(f"{size} bytes in one batch; at most {MAX_FRAME} can be passed on")
        self.socket.sendall(b"".join([size.to_bytes(4, "little"), *parts]))

    def tensor(self, data):
        """Name and array of a tensor: a view of the frame or of the shared memory, which the next batch overwrites."""
        found = dict(fields(data))
        name, datatype, shape = described(found)
        own = found.get(4, b"")
        if 5 in found:
            shared = dict(fields(found[5]))
            at, size = shared.get(1, 0), shared.get(2, 0)
            own = memoryview(self.inbound.reach(at + size))[at : at + size]
        if TYPES[datatype] is None:
            return name, read({"datatype": "BYTES", "shape": shape}, own)
        return name, np.frombuffer(own, TYPES[datatype]).reshape(shape)

    def pack(self, outputs):
        """The messages of outputs, which are pairs of a name and a datatype with an array. Large ones go to the memory."""
        raw = [
            (name, datatype, array.shape, encoded(array) if datatype == "BYTES" else np.ascontiguousarray(array))
            for name, datatype, array in outputs
        ]
        places, at, total = [], 0, 0
        for *_, data in raw:
            size = data.nbytes if isinstance(data, np.ndarray) else len(data)
            places.append((at, size))
            total = at + size
            at = (total + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        memory = None
        if self.outbound is not None and MIN_SHARED <= total <= MAX_SHARED:
            memory = self.outbound.reserve(total)
        messages = []
        for (name, datatype, shape, data), (at, size) in zip(raw, places):
            head = sized(1, name.encode()) + whole(2, DATATYPES.index(datatype))
            head += sized(3, b"".join(map(number, shape)))
            if memory is None:
                body = sized(4, data.tobytes() if isinstance(data, np.ndarray) else data)
            else:
                np.frombuffer(memory, np.uint8, size, at)[:] = np.frombuffer(data, np.uint8, size) if size else 0
                body = sized(5, whole(1, at) + whole(2, size))
            messages.append(sized(2, head + body))
        return messages


def encoded(array):
    """BYTES elements, each with its length before it."""
    return b"".join(map(element, array.ravel()))
