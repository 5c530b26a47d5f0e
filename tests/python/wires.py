"""The two wires of the stock Triton clients behind one face, for tests that hold on both.

`Http` and `Grpc` differ in how a tensor is put into a request and in how an error is named; all else is the same.
"""

import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype


class Http:
    """tritonclient.http; `binary` chooses the tensors' form in both directions."""

    module = tritonclient.http

    def __init__(self, server, binary=True, concurrency=8):
        self.binary = binary
        self.client = self.module.InferenceServerClient(server.http, concurrency=concurrency, network_timeout=60.0)

    def output(self, name):
        return self.module.InferRequestedOutput(name, binary_data=self.binary)

    def input(self, name, array, datatype=None):
        tensor = self.module.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, binary_data=self.binary)
        return tensor

    def infer(self, model, outputs, inputs, **options):
        """Runs a request and returns its outputs by name."""
        result = self.client.infer(model, inputs, outputs=[self.output(name) for name in outputs], **options)
        return {name: result.as_numpy(name) for name in outputs}


class Grpc(Http):
    """tritonclient.grpc, whose tensors are always raw bytes."""

    module = tritonclient.grpc

    def __init__(self, server):
        self.client = self.module.InferenceServerClient(server.grpc)

    def output(self, name):
        return self.module.InferRequestedOutput(name)

    def input(self, name, array, datatype=None):
        tensor = self.module.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        return tensor
