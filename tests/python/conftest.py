"""What all client tests share.

The KServe client registers protobuf messages of the same names as Triton's, and protobuf refuses to hold both in one
process. So a plain run leaves its file out, and it is named in a run of its own:

    pytest tests/python && pytest tests/python/test_kserve_client.py
"""

import pathlib
import sys

collect_ignore = ["test_kserve_client.py"]

# The package that users copy or install, as it stands in the repository.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "clients" / "python"))
