"""Models in cells for Ripieno: from PyTorch modules to a folder that serves at once.

| module | what it does | needs, beside onnxruntime and numpy |
|---|---|---|
| `models` | `export_recurrent`, `export_encode_decode`, `export_tree`: a whole model folder | torch, onnx |
| `cells` | `export_cell`: any module as one cell file; `nn.LSTM` and its like cut into steps | torch, onnx |
| `tree_lstm` | a tree LSTM to train | torch |
| `settings` | writes `model.toml` | nothing at all |
| `trees` | nested lists to the table of nodes that a tree model takes | numpy alone |
| `reference` | runs a model folder cell by cell, to compare with | |

The guide is `docs/guide/exporting.md`.
"""
