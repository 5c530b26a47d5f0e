"""Tests of the exporter in clients/python, which need PyTorch: `cargo xtask test --export`.

They are apart from tests/python because PyTorch from the default package index fills more than five gigabytes.
"""

import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients" / "python"), str(ROOT / "tests" / "python")]


@pytest.fixture(autouse=True)
def one_seed():
    torch.manual_seed(1)
    torch.set_num_threads(1)
