"""The wheel: built by maturin, installed into a fresh virtual environment, and used from there.

maturin asks cargo for the binary alone. cargo would then settle on other features of some dependencies than for the whole
workspace, and build two dozen crates again; so maturin's cargo is a script that gives the workspace's build, which is there, without the binary's own tests.
maturin moves the binary that it is given, so the script gives a copy: other tests start the binary meanwhile.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import repositories
from serving import ROOT, TARGET, Server, onnxruntime_library
from test_texts import write as write_texts

CARGO = """#!/bin/sh
test "$1" = rustc || exec cargo "$@"
cargo build --workspace --bins --tests --locked --message-format json-render-diagnostics |
    grep -v '"profile":{[^}]*"test":true' | sed "s|\\"$CARGO_TARGET_DIR/debug/ripieno\\"|\\"$BINARY\\"|g"
cp "$CARGO_TARGET_DIR/debug/ripieno" "$BINARY"
"""


# The first model of the guide.
DENSE = """
import numpy as np
import ripieno

W = np.ones((16, 4), np.float32)

@ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(4)})
def serve(x):
    return x @ W
"""


def run(*command, **environment):
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of the programs of an environment that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    cargo = folder / "cargo"
    cargo.write_text(CARGO)
    cargo.chmod(0o755)
    maturin = pathlib.Path(sys.executable).parent / "maturin"
    build = (maturin, "build", "--profile", "dev", "--compatibility", "linux", "--out", folder)
    (folder / "built").mkdir()
    run(*build, CARGO=str(cargo), CARGO_TARGET_DIR=str(TARGET), BINARY=str(folder / "built" / "ripieno"))
    (wheel,) = folder.glob("ripieno-*.whl")
    run(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    same_numpy = folder / "constraints.txt"
    same_numpy.write_text(f"numpy=={np.__version__}\n")
    run(programs / "python", "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", same_numpy, wheel)
    yield programs
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(installed, tmp_path_factory):
    """The second command: `ripieno serve REPOSITORY`, with the program that the wheel brought."""
    repository = tmp_path_factory.mktemp("repository")
    for model in ("digits", "dates", "arithmetic"):
        settings = (repositories.DEMO / model / "model.toml").read_text()
        repositories.copy_demo(repository, model, re.sub(r"slo_ms = \S+", "slo_ms = 20000", settings))
    write_texts(repository)
    (repository / "dense" / "1").mkdir(parents=True)
    (repository / "dense" / "1" / "model.py").write_text(DENSE)
    with Server(repository, binary=installed / "ripieno") as running:
        yield running


@pytest.fixture
def python(installed, server):
    """Runs a script with the environment's Python, which knows nothing of this checkout; it prints JSON."""

    def script(text):
        head = f"import json, numpy as np\nfrom ripieno import Client, Refused, tree\nclient = Client('{server.http}')\n"
        return json.loads(run(installed / "python", "-I", "-c", head + textwrap.dedent(text)))

    return script


def test_arrays_in_arrays_out(python):
    said = python("""
        images = np.random.default_rng(1).random((3, 1, 8, 8), np.float32)
        together = client.infer("digits", {"image": images}, deadline_ms=15000, outputs=["logits"])["logits"]
        apart = [client.start("digits", {"image": image[None]}) for image in images]
        same = all(np.allclose(one.result()["logits"][0], row, atol=1e-4) for one, row in zip(apart, together))
        print(json.dumps([list(together.shape), str(together.dtype), same]))
    """)
    assert said == [[3, 10], "float32", True]


def test_a_model_in_python_runs_in_the_environment_of_the_wheel(python):
    said = python("""
        answer = client.infer("dense", {"x": np.arange(32, dtype=np.float32).reshape(2, 16)})
        print(json.dumps(answer["y"].tolist()))
    """)
    assert said == [[120] * 4, [376] * 4]


def test_streams_and_trees(python):
    said = python("""
        steps = list(client.stream("dates", {"token": list(b"20 Nov 2026")}))
        expression = ("*", ("+", "3", "4"), "2")
        below = lambda node: node[1:] if isinstance(node, tuple) else ()
        inputs = tree(expression, below, arity=2, token=lambda node: ord(node[0]))
        value = client.infer("arithmetic", inputs)["value"]
        print(json.dumps(["".join(chr(step["tokens"]) for step in steps[:10]), value.tolist()]))
    """)
    assert said == ["2026-11-20", [4]]


def test_texts(python):
    said = python("""
        vectors = client.embed("encoder", ["the river", "a lovely little book"])
        label, classes = client.classify("classifier", ["the river"])[0]
        ranks = client.rerank("ranker", "where?", ["here", "a book"])
        print(json.dumps([np.linalg.norm(vectors, axis=1).round(4).tolist(), label, classes.sum().round(4).item(),
                          sorted(index for index, score in ranks)]))
    """)
    assert said[0] == [1, 1] and said[1].startswith("LABEL_") and said[2:] == [1, [0, 1]]


def test_asyncio(python):
    said = python("""
        import asyncio
        from ripieno import AsyncClient
        async def ask():
            async with AsyncClient(client._address.host + ":" + str(client._address.port), at_once=8) as ours:
                images = np.random.default_rng(1).random((40, 1, 8, 8), np.float32)
                calls = (ours.infer("digits", {"image": image[None]}, deadline_ms=15000) for image in images)
                apart = np.concatenate([answer["logits"] for answer in await asyncio.gather(*calls)])
                same = np.allclose(apart, client.infer("digits", {"image": images})["logits"], atol=1e-4)
                kept = len(ours._kept)
                steps = [step["tokens"] async for step in ours.stream("dates", {"token": list(b"20 Nov 2026")})]
                try:
                    await ours.infer("nobody", {"image": images})
                except Refused as refused:
                    status = refused.status
                given_up = asyncio.create_task(ours.infer("digits", {"image": images}))
                await asyncio.sleep(0)
                given_up.cancel()
                try:
                    await given_up
                except asyncio.CancelledError:
                    status = -status
                vectors = await ours.embed("encoder", ["the river"])
                ready = [await ours.ready(), await ours.ready("digits"), await ours.ready("nobody")]
                names = sorted(model["name"] for model in await ours.models())
                tensor = (await ours.metadata("digits"))["inputs"][0]["name"]
                spelled = "".join(map(chr, steps[:10]))
                return [bool(same), kept, spelled, status, list(vectors.shape)[:1], ready, "digits" in names, tensor]
        print(json.dumps(asyncio.run(ask())))
    """)
    assert said == [True, 8, "2026-11-20", -404, [1], [True, True, False], True, "image"]


def test_refusals_say_why(python):
    said = python("""
        def refusal(*arguments, **options):
            try:
                client.infer(*arguments, **options)
            except Refused as refused:
                return [refused.status, str(refused)]
        image = np.zeros((1, 1, 8, 8), np.float32)
        print(json.dumps([
            refusal("nobody", {"image": image}),
            refusal("digits", {"image": image.astype(np.int64)}),
            refusal("digits", {"image": image}, deadline_ms=0.001),
            client.ready(), client.ready("digits"), client.ready("nobody"),
            list(client.infer("digits", {"image": image})),
        ]))
    """)
    assert [refused[0] for refused in said[:3]] == [404, 400, 504]
    assert "nobody" in said[0][1] and "INT64" in said[1][1]
    assert said[3:] == [True, True, False, ["logits"]]


def test_the_engine_of_the_same_environment_is_found(installed, tmp_path):
    """`pip install onnxruntime` beside the wheel, and no variable that names the library; the environment is not active."""
    package = next((installed.parent / "lib").glob("python*/site-packages")) / "onnxruntime"
    package.symlink_to(pathlib.Path(onnxruntime_library()).parents[1])
    try:
        repositories.copy_demo(tmp_path, "digits", "slo_ms = 20000\n")
        said = run(installed / "ripieno", "models", tmp_path, "--engine", "onnxruntime", PATH="/usr/bin:/bin", ORT_DYLIB_PATH="")
        assert "digits" in said
    finally:
        package.unlink()


def test_strings_halves_and_connections_that_were_closed(installed):
    said = run(installed / "python", "-I", "-c", textwrap.dedent("""
        import http.server, json, threading, numpy as np
        from ripieno import Client
        from ripieno.tensors import pack, unpack

        arrays = {"s": np.array([["a", "déjà"]]), "h": np.array([0.5], np.float16), "b": np.array([True, False])}
        body, head = pack(arrays)
        back = unpack(body.replace(b'"inputs"', b'"outputs"'), head + 1)
        print(back["s"][0, 1].decode(), back["h"].tolist(), back["b"].tolist())

        class Closes(http.server.BaseHTTPRequestHandler):
            protocol_version, seen = "HTTP/1.1", 0
            def do_GET(self):
                Closes.seen += 1
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")
                # Without a word of it: the client learns it when it asks again.
                self.close_connection = True
            log_message = lambda *any: None

        served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Closes)
        threading.Thread(target=served.serve_forever, daemon=True).start()
        with Client(f"127.0.0.1:{served.server_port}") as client:
            print([client.ready() for _ in range(3)], Closes.seen)
        served.shutdown()
    """))
    assert said == "déjà [0.5] [True, False]\n[True, True, True] 3\n"
