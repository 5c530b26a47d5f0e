"""What a machine without a network needs: a bundle with a stripped binary, and the contents of Python wheels."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What the check reads, beside the binary.
PARTS = [
    "scripts/gpu-check",
    "scripts/gpu_check",
    "models",
    "tests/models",
    "tests/python/serving.py",
    "docs/guide/gpu.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
]
MOST_BYTES = 60 << 20


def pack(binary, out):
    """Writes a bundle; a piece above 60 MiB is an error. The files of the cells are built here: beside the GPU nothing is."""
    import cell_models

    left_out = lambda info: None if "__pycache__" in info.name or "/.ripieno" in info.name else info
    with tempfile.TemporaryDirectory() as folder:
        stripped = pathlib.Path(folder) / "ripieno"
        shutil.copy(binary, stripped)
        subprocess.run(["strip", str(stripped)], check=True)
        cell_models.pack(pathlib.Path(folder) / "built")
        with tarfile.open(out, "w:gz", compresslevel=6) as archive:
            archive.add(stripped, "gpu-check/ripieno")
            archive.add(pathlib.Path(folder) / "built", "gpu-check/built")
            for part in PARTS:
                archive.add(ROOT / part, f"gpu-check/{part}", filter=left_out)
    size = out.stat().st_size
    if size > MOST_BYTES:
        out.unlink()
        raise SystemExit(f"gpu-check: {out} would have {size >> 20} MiB, more than {MOST_BYTES >> 20}; pack a release build")
    print(
        f"{out}: {size / (1 << 20):.1f} MiB; on the other machine: tar xf {out.name}; gpu-check/scripts/gpu-check --wheels WHEELS"
    )


def unpack_wheels(wheels, folder):
    """Extracts the wheels of a folder, as if they were installed."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise SystemExit(f"gpu-check: {wheels} holds no wheels; fill it as docs/guide/gpu.md says")
    for file in files:
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(folder)


def environment(site):
    """The variable with which CUDA's libraries are found in the packages of a folder and in this Python's.

    The server's engine of cells looks for cuBLAS in LD_LIBRARY_PATH and the system only.
    """
    places = [pathlib.Path(place) for place in [*([site] if site else []), *sys.path] if place]
    libraries = [str(folder) for place in places for folder in sorted(place.glob("nvidia/*/lib")) if folder.is_dir()]
    earlier = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    paths = os.pathsep.join(dict.fromkeys([*libraries, *earlier]))
    return {"LD_LIBRARY_PATH": paths} if paths else {}


def restart(site, began):
    """Runs the program again with the packages of a folder, as if it had begun then; returns its exit code."""
    packages = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "GPU_CHECK_SITE": str(site)}
    variables = {**os.environ, **environment(site), **packages, "GPU_CHECK_BEGAN": repr(began)}
    variables.pop("ORT_DYLIB_PATH", None)
    child = subprocess.Popen([sys.executable, str(pathlib.Path(__file__).parent), *sys.argv[1:]], env=variables)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    return child.wait()


def find_binary():
    """The bundle's binary, or that of a build."""
    places = [ROOT / "ripieno", ROOT / "target/release/ripieno", ROOT / "target/debug/ripieno"]
    return next((place for place in places if place.is_file()), places[0])
