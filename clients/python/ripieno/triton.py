"""Models of Triton's Python backend: a class TritonPythonModel, run as it is.

`triton_python_backend_utils` is this module. What it has not is refused by name when the model asks for it: calls of
other models (BLS), responses of decoupled models, and tensors on GPUs.
"""

import json
import sys

import numpy as np

from ripieno.models import DATATYPES, BadRequest
from ripieno.tensors import DATATYPES as KINDS

MISSING = {
    "InferenceRequest": "calls of other models (BLS); put both into an ensemble",
    "InferenceResponseSender": "decoupled responses",
    "PreferredMemory": "tensors on GPUs",
    "Logger": "a logger of Triton; use print or logging",
}


class Unsupported(Exception):
    """What a model asks of Triton that is not there."""


class TritonModelException(Exception):
    pass


class TritonError:
    """An error in an answer; its request fails with the message."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message="", code=INTERNAL):
        self.text, self.status = str(message), code

    def message(self):
        return self.text

    def code(self):
        return self.status


class TritonTensor:
    """A named array."""

    def __init__(self, name, array):
        self.title, self.array = name, np.asarray(array)

    def name(self):
        return self.title

    def as_numpy(self):
        return self.array

    def shape(self):
        return list(self.array.shape)

    def is_cpu(self):
        return True

    def triton_dtype(self):
        return numpy_to_triton_type(self.array.dtype)

    def to_dlpack(self):
        return self.array.__dlpack__()

    @staticmethod
    def from_dlpack(name, tensor):
        return TritonTensor(name, np.from_dlpack(tensor))


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self.tensors, self.failure = list(output_tensors), error

    def output_tensors(self):
        return self.tensors

    def has_error(self):
        return self.failure is not None

    def error(self):
        return self.failure


class Request:
    """A request as `execute` sees it: one row of the batch, or all of a model without batches."""

    def __init__(self, inputs, outputs):
        self.tensors, self.wanted = [TritonTensor(*item) for item in inputs.items()], list(outputs)

    def inputs(self):
        return self.tensors

    def requested_output_names(self):
        return self.wanted

    def request_id(self):
        return ""

    def correlation_id(self):
        return 0

    def flags(self):
        return 0

    def timeout(self):
        return 0

    def parameters(self):
        return "{}"

    def is_cancelled(self):
        return False

    def get_response_sender(self):
        raise Unsupported("get_response_sender: decoupled responses are not supported")


def get_input_tensor_by_name(request, name):
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(response, name):
    return next((tensor for tensor in response.output_tensors() if tensor.name() == name), None)


def _config(config, side, name):
    return next((tensor for tensor in config[side] if tensor["name"] == name), None)


def get_input_config_by_name(config, name):
    return _config(config, "input", name)


def get_output_config_by_name(config, name):
    return _config(config, "output", name)


def using_decoupled_model_transaction_policy(config):
    return False


def triton_string_to_numpy(name):
    datatype = "BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")
    return np.object_ if datatype == "BYTES" else KINDS.get(datatype)


def numpy_to_triton_type(kind):
    return next((name for name, known in KINDS.items() if known == kind), "BYTES")


def __getattr__(name):
    if name in MISSING:
        raise Unsupported(f"triton_python_backend_utils.{name} is not supported: {MISSING[name]}")
    raise AttributeError(name)


def provide():
    """Makes this module the one that models of Triton import."""
    module = sys.modules[__name__]
    module.Tensor = TritonTensor
    names = [f"TYPE_{'STRING' if name == 'BYTES' else name}" for name in DATATYPES]
    module.TRITON_STRING_TO_NUMPY = {name: triton_string_to_numpy(name) for name in names}
    sys.modules["triton_python_backend_utils"] = module


class Adapter:
    """A TritonPythonModel as a model of this package."""

    def __init__(self, kind, name, folder, inputs, outputs, unbatched, device):
        self.model, self.outputs, self.unbatched = kind(), list(outputs), unbatched
        if hasattr(self.model, "initialize"):
            sides = {"input": inputs, "output": outputs}
            config = {side: [described(*item) for item in tensors.items()] for side, tensors in sides.items()}
            config |= {"name": name, "backend": "python", "max_batch_size": 0 if unbatched else 1, "parameters": {}}
            place = {"model_instance_kind": "GPU" if device.startswith("cuda") else "CPU"}
            self.model.initialize(
                {
                    "model_config": json.dumps(config),
                    "model_name": name,
                    "model_version": folder.name,
                    "model_repository": str(folder.parent),
                    "model_instance_name": f"{name}_0",
                    "model_instance_device_id": device.removeprefix("cuda:") if device != "cpu" else "0",
                    **place,
                }
            )

    def run(self, **inputs):
        rows = [inputs]
        if not self.unbatched:
            count = len(next(iter(inputs.values())))
            rows = [{name: array[at : at + 1] for name, array in inputs.items()} for at in range(count)]
        responses = self.model.execute([Request(row, self.outputs) for row in rows])
        if not isinstance(responses, list) or len(responses) != len(rows) or None in responses:
            raise Unsupported("execute returned no response to some requests; decoupled responses are not supported")
        answers = [self.answer(response) for response in responses]
        if self.unbatched:
            return answers[0]
        return {name: np.concatenate([answer[name] for answer in answers]) for name in self.outputs}

    def answer(self, response):
        if response.has_error():
            failure = response.error()
            refused = failure.code() == TritonError.INVALID_ARG
            raise (BadRequest if refused else TritonModelException)(failure.message())
        given = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        if missing := [name for name in self.outputs if name not in given]:
            raise TritonModelException(f"execute gave no {', '.join(missing)}")
        return given

    def close(self):
        if hasattr(self.model, "finalize"):
            self.model.finalize()


def described(name, tensor):
    datatype = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return {"name": name, "data_type": f"TYPE_{datatype}", "dims": list(tensor.shape)}
