"""What a model's function gets and gives: arrays of NumPy, PyTorch or JAX, on the model's device."""

import numpy as np


class NumpyTensors:
    """Arrays as they are: views that the model cannot write."""

    def __init__(self, device):
        pass

    def enter(self, call, inputs):
        for array in inputs.values():
            array.flags.writeable = False
        return call(**inputs)

    def leave(self, value):
        return np.asarray(value)


class TorchTensors:
    """Tensors on the model's device. On the CPU they lie where the batch lies, and may be written."""

    def __init__(self, device):
        import torch

        self.torch, self.device = torch, torch.device(device)

    def upload(self, array):
        if array.dtype.kind == "O":
            return array
        if not array.flags.writeable:
            array = array.copy()
        tensor = self.torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def enter(self, call, inputs):
        with self.torch.inference_mode():
            return call(**{name: self.upload(array) for name, array in inputs.items()})

    def leave(self, value):
        if not isinstance(value, self.torch.Tensor):
            return np.asarray(value)
        value = value.detach().cpu()
        return (value.view(self.torch.uint16) if value.dtype == self.torch.bfloat16 else value).numpy()


class JaxTensors:
    """Arrays of JAX on its default device."""

    def __init__(self, device):
        import jax

        self.jax = jax

    def enter(self, call, inputs):
        place = {name: x if x.dtype.kind == "O" else self.jax.device_put(x) for name, x in inputs.items()}
        return call(**place)

    def leave(self, value):
        return np.asarray(value)


CONVERSIONS = {"numpy": NumpyTensors, "torch": TorchTensors, "jax": JaxTensors}
