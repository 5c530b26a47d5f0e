"""The last cells of the models in cells: from a state to an answer that a person can read. Needs torch."""

from torch import nn


class Best(nn.Module):
    """The best class, and the scores of all."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def forward(self, h):
        logits = self.dense(h)
        return logits.argmax(dim=1), logits


class Probable(nn.Module):
    """The best class, and the probability of each."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def forward(self, h):
        logits = self.dense(h)
        return logits.argmax(dim=1), logits.softmax(dim=1)
