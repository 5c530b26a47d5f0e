"""Just enough HTTP/2 to misuse it: headers as literals, data within the server's windows, our own windows as small as we like."""

import asyncio
import struct

import wire

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
INITIAL_WINDOW = 4
FRAME_BYTES = 16384


def frame(kind, flags, stream, payload=b""):
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header_block(fields):
    """HPACK without tables or Huffman codes: each field a literal of a new name."""
    block = b""
    for name, value in fields:
        block += b"\x00" + integer(len(name)) + name.encode() + integer(len(value)) + value.encode()
    return block


def integer(value):
    """A length with a prefix of seven bits."""
    if value < 127:
        return bytes([value])
    return b"\x7f" + varint(value - 127)


def varint(value):
    """Seven bits a byte, the lowest first, as HPACK and protobuf have it."""
    out = bytearray()
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out + bytes([value]))


class Connection:
    """Streams of one connection. `window` is what the server may send on each stream before we say more; we never do."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.next_stream, self.room, self.stream_room, self.initial = 1, 65535, {}, 65535
        self.received = {}
        self.changed = asyncio.Event()
        self.closed = False

    @classmethod
    async def open(cls, address, window=65535, source=None):
        reader, writer = await wire.connect(address, source)
        self = cls(reader, writer)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, window)))
        self.task = asyncio.create_task(self._read())
        return self

    def headers(self, path, content_type, end=False, more=()):
        """Opens a stream with a POST."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        self.stream_room[stream] = self.initial
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        fields += [("content-type", content_type), ("te", "trailers"), *more]
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.writer.write(frame(HEADERS, flags, stream, header_block(fields)))
        return stream

    async def data(self, stream, payload, end=False, patience=5.0):
        """Sends as much as the windows allow within `patience` of silence; returns how much that was."""
        sent = 0
        while sent < len(payload) and not self.closed:
            size = min(FRAME_BYTES, len(payload) - sent, self.room, self.stream_room.get(stream, 0))
            if size <= 0:
                self.changed.clear()
                try:
                    await asyncio.wait_for(self.changed.wait(), patience)
                except TimeoutError:
                    return sent
                continue
            last = end and sent + size == len(payload)
            self.writer.write(frame(DATA, END_STREAM if last else 0, stream, payload[sent : sent + size]))
            self.room, self.stream_room[stream] = self.room - size, self.stream_room[stream] - size
            sent += size
            await self.writer.drain()
        return sent

    def close(self):
        self.task.cancel()
        self.writer.close()

    async def _read(self):
        try:
            while True:
                head = await self.reader.readexactly(9)
                length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
                self._take(kind, flags, stream, await self.reader.readexactly(length))
        except (EOFError, OSError):
            pass
        finally:
            self.closed = True
            self.changed.set()

    def _take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == INITIAL_WINDOW:
                    self.stream_room = {key: room + value - self.initial for key, room in self.stream_room.items()}
                    self.initial = value
            self.writer.write(frame(SETTINGS, ACK, 0))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self.room += more
            elif stream in self.stream_room:
                self.stream_room[stream] += more
        elif kind == PING and not flags & ACK:
            self.writer.write(frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM:
            self.stream_room.pop(stream, None)
        elif kind in (DATA, HEADERS):
            self.received[stream] = self.received.get(stream, 0) + len(payload)
        self.changed.set()
