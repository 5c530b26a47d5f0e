"""Models in cells for Ripieno: from PyTorch modules to a folder that serves at once.

| module | what it does | needs |
|---|---|---|
| `models` | `export_recurrent`, `export_encode_decode`, `export_tree`: a whole model folder | torch, onnx, onnxruntime |
| `cells` | `export_cell`: any module as one cell file; `nn.LSTM`, `nn.GRU`, `nn.RNN` cut into steps | torch, onnx, onnxruntime |
| `tree_lstm` | a tree LSTM to train | torch |
| `settings` | writes `model.toml` | nothing |
| `trees` | nested lists to the table of nodes that a tree model takes | numpy |
| `reference` | runs a model folder cell by cell, to compare with | onnxruntime |

The guide is `docs/exporting.md`.
"""
