"""Arrays to the bodies of the Open Inference Protocol and back: a head of JSON, then the tensors as they lie in memory."""

import json
import math
import struct

import numpy as np

# The size of a number that NumPy has no type for is that of what stands for it.
DATATYPES = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
NAMES = {np.dtype(kind): name for name, kind in DATATYPES.items()}


def pack(inputs, outputs=None, parameters=None):
    """The body of a request and the length of its head."""
    tensors, parts = [], []
    for name, value in inputs.items():
        datatype, shape, data = raw(name, np.asarray(value))
        parts.append(data)
        tensors.append(
            {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        )
    head = {"inputs": tensors, "parameters": {"binary_data_output": True, **(parameters or {})}}
    if outputs is not None:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = json.dumps(head).encode()
    return b"".join([head, *parts]), len(head)


def unpack(body, head_length):
    """The arrays of an answer, by name. They are read-only: they lie in the answer itself."""
    head_length = len(body) if head_length is None else head_length
    head, at, arrays = json.loads(body[:head_length]), head_length, {}
    for tensor in head.get("outputs", []):
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            arrays[tensor["name"]] = listed(tensor)
        else:
            arrays[tensor["name"]] = read(tensor, body[at : at + size])
            at += size
    return arrays


def raw(name, array):
    """Datatype, shape and bytes of an array."""
    if array.dtype.kind in "USO":
        return "BYTES", list(array.shape), b"".join(map(element, array.ravel()))
    datatype = "BF16" if array.dtype.name == "bfloat16" else NAMES.get(array.dtype.newbyteorder("="))
    if datatype is None:
        raise TypeError(f"{name}: the protocol has no type for arrays of {array.dtype}; use astype")
    return datatype, list(array.shape), array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def element(value):
    """A string with its length before it."""
    data = value.encode() if isinstance(value, str) else bytes(value)
    return struct.pack("<I", len(data)) + data


def read(tensor, data):
    """A tensor from its bytes; BF16 as UINT16, since NumPy does not know it, and BYTES as objects."""
    datatype, shape = tensor["datatype"], tensor["shape"]
    if datatype != "BYTES":
        kind = np.dtype(DATATYPES.get(datatype, np.uint16)).newbyteorder("<")
        return np.frombuffer(data, kind).reshape(shape)
    found, at = np.empty(math.prod(shape), object), 0
    for index in range(len(found)):
        (length,) = struct.unpack_from("<I", data, at)
        found[index] = bytes(data[at + 4 : at + 4 + length])
        at += 4 + length
    return found.reshape(shape)


def listed(tensor):
    """A tensor from a list, as those come that have no bytes."""
    kind = DATATYPES.get(tensor["datatype"], object)
    return np.array(tensor["data"], kind).reshape(tensor["shape"])
