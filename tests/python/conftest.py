"""What all client tests share.

The KServe client registers protobuf messages of the same names as Triton's, and protobuf refuses to hold both in one
process. So a plain run leaves its file out, and it is named in a run of its own:

    pytest tests/python && pytest tests/python/test_kserve_client.py
"""

import pathlib
import sys

import pytest

import repositories
from serving import Server

collect_ignore = ["test_kserve_client.py"]

# The package that users copy or install, as it stands in the repository.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "clients" / "python"))


@pytest.fixture(scope="module")
def every_datatype(tmp_path_factory):
    """A server with a model for each datatype, whose answer is its input."""
    repository = tmp_path_factory.mktemp("datatypes")
    for datatype in repositories.DATATYPES:
        toml = repositories.PATIENT + "max_batch = 4\n"
        repositories.write(repository, datatype.lower(), repositories.identity(datatype), toml)
    with Server(repository, "--engine", "onnxruntime") as server:
        yield server
