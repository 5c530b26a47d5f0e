"""Ripieno beside mosec as a server of sentence embeddings, under the same open-loop load of texts of natural lengths.

    python tests/python/measure_embeddings.py BINARY [--rates 100,200,300,400] [--rounds 5] [--seconds 4]

BINARY is a release build of ripieno; mosec and tokenizers come from the package index. Both serve an encoder of MiniLM's size (six
layers of 384, random weights) on one thread of ONNX Runtime, beside the load generator on the same machine. A request is one text; its
number of words is lognormal (median 12, at most 120). mosec gets what a good Python server does: the tokenizer of Hugging Face, batches
of up to 32 within 5 ms, cut by length into parts of which each is padded to its longest text. An answer is useful if it is complete
SLO_S after the request was due. Vectors of both are compared first.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np
import onnx

import slice_models
from measure_peers import Client, load
from serving import ROOT, Server

TOKENIZER = ROOT / "crates" / "text" / "tests" / "models" / "tokenizer.json"
LONGEST, TEXTS, SLO_S, PEER = 128, 2000, 0.2, 18424
MOSEC = """
import base64, json, numpy as np, onnxruntime, tokenizers
from mosec import Server, Worker

class Model(Worker):
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession({path!r}, options, providers=["CPUExecutionProvider"])
        self.tokenizer = tokenizers.Tokenizer.from_file({tokenizer!r})
        self.tokenizer.enable_truncation({longest})
        self.tokenizer.no_padding()

    def deserialize(self, data):
        return json.loads(data)["input"]

    def forward(self, texts):
        found = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        order, vectors = sorted(range(len(found)), key=lambda at: len(found[at])), [None] * len(found)
        for begin in range(0, len(order), {part}):
            members = order[begin : begin + {part}]
            ids = np.zeros((len(members), len(found[members[-1]])), np.int64)
            mask = np.zeros_like(ids)
            for row, at in enumerate(members):
                ids[row, : len(found[at])], mask[row, : len(found[at])] = found[at], 1
            states = self.session.run(None, dict(input_ids=ids, attention_mask=mask))[0]
            means = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
            means /= np.linalg.norm(means, axis=1, keepdims=True)
            for at, mean in zip(members, means):
                vectors[at] = mean.astype(np.float32)
        return vectors

    def serialize(self, vector):
        return json.dumps(dict(embedding=base64.b64encode(vector.tobytes()).decode())).encode()

if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=1, max_batch_size=32, max_wait_time=5)
    server.run()
"""


def texts():
    """Texts whose numbers of words are lognormal."""
    words = [word for word in json.loads(TOKENIZER.read_text())["model"]["vocab"] if word.isalpha()]
    draws = np.random.default_rng(1)
    lengths = np.clip(draws.lognormal(np.log(12), 0.8, TEXTS), 1, LONGEST - 8).astype(int)
    return [" ".join(draws.choice(words, length)) for length in lengths]


def body(text):
    return json.dumps({"model": "encoder", "input": text, "encoding_format": "base64"}).encode()


class TextClient(Client):
    """Sends another text with each request."""

    def __init__(self, port, path, seed):
        self.draws, self.sent = random.Random(seed), []
        for text in texts():
            content = body(text)
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            self.sent.append(head.encode() + content)
        super().__init__(port, None)

    @property
    def request(self):
        return self.draws.choice(self.sent)

    @request.setter
    def request(self, _):
        pass


def vector(port, path, text):
    post = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body(text), headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(post, timeout=30) as reply:
        said = json.load(reply)
    return np.frombuffer(base64.b64decode(said.get("embedding") or said["data"][0]["embedding"]), np.float32)


@contextlib.contextmanager
def mosec(folder, part):
    program = folder / "mosec_embeddings.py"
    model = str(folder / "encoder" / "1" / "model.onnx")
    program.write_text(MOSEC.format(path=model, tokenizer=str(TOKENIZER), longest=LONGEST, part=part))
    command = [sys.executable, str(program), "--address", "127.0.0.1", "--port", str(PEER)]
    server = subprocess.Popen([*command, "--capacity", "512", "--timeout", "4000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(150):
            with contextlib.suppress(OSError):
                vector(PEER, "/inference", "a")
                break
            time.sleep(0.2)
        yield
    finally:
        server.terminate()
        server.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--rates", default="100,200,300,400")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--part", type=int, default=8, help="largest number of texts that mosec's worker pads together")
    given = parser.parse_args()
    rates = [float(rate) for rate in given.rates.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = folder / "repository" / "encoder"
        (model / "1").mkdir(parents=True)
        vocabulary = len(json.loads(TOKENIZER.read_text())["model"]["vocab"])
        onnx.save(slice_models.bert(layers=6, hidden=384, heads=12, vocabulary=vocabulary), model / "1" / "model.onnx")
        shutil.copy(TOKENIZER, model)
        (model / "model.toml").write_text(f"slo_ms = {SLO_S * 1000}\n[text]\nmax_length = {LONGEST}\nnormalize = true\n")
        found = {}
        with (
            Server(folder / "repository", "--engine", "onnxruntime", "--threads", "1", binary=given.binary.resolve()) as server,
            mosec(folder / "repository", given.part),
        ):
            servers = {"ripieno": (int(server.http.rsplit(":", 1)[1]), "/v1/embeddings"), "mosec": (PEER, "/inference")}
            apart = max(np.abs(np.subtract(*(vector(*at, text) for at in servers.values()))).max() for text in texts()[:20])
            for turn in range(given.rounds):
                for rate in rates:
                    for name, (port, path) in servers.items():
                        client = TextClient(port, path, turn)
                        useful = asyncio.run(load(port, None, rate, given.seconds, turn, client=client, within=SLO_S))
                        found.setdefault((name, rate), []).append(useful)
                        time.sleep(0.5)
    print(f"largest difference of two vectors: {apart:.1e}")
    print("| offered/s | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |\n|---|" + "---|" * len(rates))
    for name in servers:
        runs = (found[name, rate] for rate in rates)
        cells = (f"{statistics.median(run):.0f} ({min(run):.0f} to {max(run):.0f})" for run in runs)
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
