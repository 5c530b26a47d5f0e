"""A model of one function over a batch. Shapes leave out the batch."""

import numpy as np
import ripieno

W = np.ones((16, 4), np.float32)


@ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(4)})
def serve(x):  # x: [batch, 16]
    return x @ W
