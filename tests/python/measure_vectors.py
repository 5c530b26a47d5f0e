"""Vectors of texts beside sentence-transformers: the largest difference over encoders that the library itself wrote.

    python tests/python/measure_vectors.py BINARY [--texts 40]

BINARY is any build of ripieno; torch, transformers, sentence-transformers and onnx come from the package index. Each configuration is an
encoder of two layers of 32 with random weights, saved by sentence-transformers and exported by torch, with other steps, prompts, cuts
or files of older versions of the library. The texts have 1 to 40 words, of which some are unknown and some are too long. One line a
configuration says by how much the farthest component is off; the vectors have length one or about four.
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile
import urllib.request
import warnings

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer, models
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel

from serving import Server

WIDTH, LONGEST = 32, 24
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query:", "passage:", *(f"w{n}" for n in range(90)), "Upper", "upper"]
# Names of configurations of pooling before the library named its methods in one key.
OLD_NAMES = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "weightedmean": "weightedmean_tokens"}


def tokenizer(**settings):
    words = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.normalizer = normalizers.NFC()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=LONGEST, **named, **settings)


def encoder(kind):
    sizes = dict(
        vocab_size=len(WORDS), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, pad_token_id=0
    )
    if kind == "roberta":
        return transformers.RobertaModel(transformers.RobertaConfig(max_position_embeddings=66, **sizes), add_pooling_layer=False)
    if kind == "distilbert":
        config = transformers.DistilBertConfig(
            vocab_size=len(WORDS), dim=WIDTH, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64, pad_token_id=0
        )
        return transformers.DistilBertModel(config)
    return transformers.BertModel(transformers.BertConfig(max_position_embeddings=64, **sizes), add_pooling_layer=False)


class Hidden(torch.nn.Module):
    """The encoder with its inputs by position, as the exporter passes them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


def write(folder, kind="bert", pooling="mean", steps=(), save=None, change=None, **settings):
    """Writes an encoder as the library does, and its graph; returns the library's model."""
    model, base = encoder(kind).eval(), folder.with_name(folder.name + "-base")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    model.save_pretrained(base)
    tokenizer(**settings).save_pretrained(base)
    first = models.Transformer(str(base), max_seq_length=LONGEST)
    width = WIDTH * (1 if isinstance(pooling, str) else len(pooling))
    modules = [first, models.Pooling(WIDTH, pooling_mode=pooling), *(step(width) for step in steps)]
    SentenceTransformer(modules=modules, **(save or {})).save(str(folder))
    if change:
        change(folder)
    reference = SentenceTransformer(str(folder))
    (folder / "1").mkdir()
    (folder / "model.toml").write_text("slo_ms = 5000\n")
    ids = torch.ones(2, 5, dtype=torch.long)
    axes = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask", "last_hidden_state")}
    torch.onnx.export(
        Hidden(reference[0].auto_model.eval()),
        (ids, ids),
        str(folder / "1" / "model.onnx"),
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"],
        dynamic_axes=axes,
        dynamo=False,
    )
    return reference


def edited(name, edit):
    """A change of a JSON file of the folder."""

    def change(folder):
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(edit(content) or content))

    return change


def older(folder):
    """Writes pooling and modules as releases before the sixth did."""

    def old_pooling(content):
        modes = content.pop("pooling_mode")
        modes = [modes] if isinstance(modes, str) else modes
        content["word_embedding_dimension"] = content.pop("embedding_dimension")
        content.update({f"pooling_mode_{old}": name in modes for name, old in OLD_NAMES.items()})

    def old_paths(content):
        for module in content:
            module["type"] = "sentence_transformers.models." + module["type"].rsplit(".", 1)[1]

    edited("1_Pooling/config.json", old_pooling)(folder)
    edited("modules.json", old_paths)(folder)


def dense(activation):
    return lambda width: models.Dense(width, 16, activation_function=activation)


def norm(width):
    step = models.LayerNorm(width)
    torch.nn.init.normal_(step.norm.weight)
    return step


def unit(_):
    return models.Normalize()


PROMPTS = {"query": "query: ", "passage": "passage: "}
# Configuration: what is written; keys of the call beside the text; what the library is asked for.
CONFIGURATIONS = {
    "mean": ({}, {}, {}),
    "cls, normalised": (dict(pooling="cls", steps=[unit]), {}, {}),
    "max": (dict(pooling="max"), {}, {}),
    "mean_sqrt_len, RoBERTa": (dict(kind="roberta", pooling="mean_sqrt_len_tokens"), {}, {}),
    "weightedmean": (dict(pooling="weightedmean"), {}, {}),
    "lasttoken, DistilBERT": (dict(kind="distilbert", pooling="lasttoken"), {}, {}),
    "mean and cls, in this order": (dict(pooling=("mean", "cls"), steps=[unit]), {}, {}),
    "three poolings, Dense": (dict(pooling=("max", "lasttoken", "mean"), steps=[dense(torch.nn.ReLU())]), {}, {}),
    "Dense tanh, normalised": (dict(steps=[dense(torch.nn.Tanh()), unit]), {}, {}),
    "Dense identity, LayerNorm": (dict(steps=[dense(torch.nn.Identity()), lambda _: norm(16)]), {}, {}),
    "LayerNorm, normalised": (dict(steps=[norm, unit]), {}, {}),
    "default prompt": (dict(save=dict(prompts=PROMPTS, default_prompt_name="passage")), {}, {}),
    "prompt by name": (dict(save=dict(prompts=PROMPTS)), {"prompt_name": "query"}, {"prompt_name": "query"}),
    "cut on the left": (dict(truncation_side="left"), {}, {}),
    "dimensions": (dict(steps=[unit]), {"dimensions": 12}, {"truncate_dim": 12, "normalize_embeddings": True}),
    "lower case": (dict(change=edited("sentence_bert_config.json", lambda file: file.update(do_lower_case=True))), {}, {}),
    "shorter texts": (dict(change=edited("tokenizer_config.json", lambda file: file.update(model_max_length=9))), {}, {}),
    "files before release 6": (dict(pooling=("cls", "mean"), steps=[unit], change=older), {}, {}),
}


def texts(count):
    draw = random.Random(5)
    words = [*WORDS[6:], "unknown", "Upper"]
    return [" ".join(draw.choices(words, k=draw.choice([1, 3, 8, 15, 40]))) for _ in range(count)]


def vectors(server, name, asked, more):
    body = json.dumps({"model": name, "input": asked, "truncate": True, **more}).encode()
    with urllib.request.urlopen(f"http://{server.http}/v1/embeddings", body, timeout=120) as reply:
        return np.array([row["embedding"] for row in json.loads(reply.read())["data"]])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("binary")
    arguments.add_argument("--texts", type=int, default=40)
    options = arguments.parse_args()
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(1)
    asked, worst = texts(options.texts), 0.0
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder) / "models"
        repository.mkdir()
        references = {}
        for at, (name, (settings, _, _)) in enumerate(CONFIGURATIONS.items()):
            written = pathlib.Path(folder) / f"m{at}"
            references[name] = write(written, **settings)
            written.rename(repository / written.name)
        with Server(repository, "--engine", "onnxruntime", binary=options.binary) as server:
            for at, (name, (_, call, ask)) in enumerate(CONFIGURATIONS.items()):
                wanted = references[name].encode(asked, **ask)
                try:
                    off = float(np.abs(vectors(server, f"m{at}", asked, call) - wanted).max())
                    shown = f"{off:.1e}"
                except urllib.error.HTTPError as error:
                    off, shown = float("inf"), error.read().decode()[:300]
                worst = max(worst, off)
                print(f"{name:32} {wanted.shape[1]:4} numbers   {shown}", flush=True)
    print(f"largest difference of {len(CONFIGURATIONS)} configurations: {worst:.1e}")
    sys.exit(worst > 1e-4)


if __name__ == "__main__":
    main()
