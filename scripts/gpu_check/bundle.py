"""What a machine without a network needs: a bundle with a stripped binary, and the contents of Python wheels."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What the check reads, beside the binary.
PARTS = ["scripts", "models", "tests/models", "tests/python/serving.py", "docs/guide/gpu.md", "LICENSE-MIT", "LICENSE-APACHE"]
MOST_BYTES = 60 << 20


def pack(binary, out):
    """Writes a bundle; a piece above 60 MiB is an error."""
    left_out = lambda info: None if "__pycache__" in info.name or "/.ripieno" in info.name else info
    with tempfile.TemporaryDirectory() as folder:
        stripped = pathlib.Path(folder) / "ripieno"
        shutil.copy(binary, stripped)
        subprocess.run(["strip", str(stripped)], check=True)
        with tarfile.open(out, "w:gz") as archive:
            archive.add(stripped, "gpu-check/ripieno")
            for part in PARTS:
                archive.add(ROOT / part, f"gpu-check/{part}", filter=left_out)
    size = out.stat().st_size
    if size > MOST_BYTES:
        out.unlink()
        raise SystemExit(f"gpu-check: {out} would have {size >> 20} MiB, more than {MOST_BYTES >> 20}; pack a release build")
    print(f"{out}: {size / (1 << 20):.1f} MiB; on the other machine: tar xf {out.name}; gpu-check/scripts/gpu-check --wheels WHEELS")


def unpack_wheels(wheels, folder):
    """Extracts the wheels of a folder, as if they were installed."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise SystemExit(f"gpu-check: {wheels} holds no wheels; fill it as docs/guide/gpu.md says")
    for file in files:
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(folder)


def restart_with(folder):
    """Runs the program again with the packages of this folder; returns its exit code."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "GPU_CHECK_SITE": str(folder)}
    environment.pop("ORT_DYLIB_PATH", None)
    return subprocess.run([sys.executable, str(pathlib.Path(__file__).parent), *sys.argv[1:]], env=environment).returncode


def find_binary():
    """The bundle's binary, or that of a build."""
    places = [ROOT / "ripieno", ROOT / "target/release/ripieno", ROOT / "target/debug/ripieno"]
    return next((place for place in places if place.is_file()), places[0])
