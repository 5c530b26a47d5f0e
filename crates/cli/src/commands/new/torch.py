"""A PyTorch model. Put your own module in place of `module`, and its shapes into the decorator."""

import ripieno
import torch


def module():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


@ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(4)}, tensors="torch")
class Net:
    def load(self, device):  # "cpu" or "cuda:0"
        # Weights, if you have some: torch.load(pathlib.Path(__file__).with_name("weights.pt"))
        self.net = module().to(device).eval()

    def run(self, x):  # x: a tensor on the device, [batch, 16]
        return self.net(x)
