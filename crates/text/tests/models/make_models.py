"""Makes the tiny models and the tokenizer of the tests that read text: `python make_models.py` here, with onnx and numpy.

One layer of attention over an embedding, at seeded random weights, as encoders are exported: token ids, a mask, and types. What
is masked changes nothing. The vocabulary is made of the words below.
"""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS = """the a an film story plot train room food was is felt seemed very really not never good great bad poor dull fine
lovely terrible who wrote where when what how many people live in berlin paris rome capital city of france germany it has
large small river bridge song book author and but , . ? ! ##s ##ed ##ing ##ly""".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
SIZE = 16


def tokenizer():
    vocabulary = {token: at for at, token in enumerate(SPECIAL + WORDS)}
    added = [
        {"id": at, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for at, token in enumerate(SPECIAL)
    ]
    special = lambda token: {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": kind}} for name, kind in (("A", 0), ("B", 1)))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("[CLS]"), first, special("[SEP]")],
            "pair": [special("[CLS]"), first, special("[SEP]"), second, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
            "special_tokens": {
                token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def save(name, more, output, shape, weights):
    random = np.random.default_rng(7)
    matrix = lambda *shape: (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    weights = {
        "embedding": matrix(len(SPECIAL) + len(WORDS), SIZE) * 4,
        "kinds": matrix(2, SIZE),
        "values": matrix(SIZE, SIZE),
        "scale": np.ones(SIZE, np.float32),
        "bias": np.zeros(SIZE, np.float32),
        "one": np.array(1, np.float32),
        "far": np.array(-1e4, np.float32),
        "middle": np.array([1], np.int64),
        **{name: matrix(*shape) for name, shape in weights.items()},
    }
    op = helper.make_node
    nodes = [
        op("Gather", ["embedding", "input_ids"], ["words"]),
        op("Gather", ["kinds", "token_type_ids"], ["sides"]),
        op("Add", ["words", "sides"], ["x"]),
        op("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        op("MatMul", ["x", "turned"], ["likeness"]),
        op("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
        op("Sub", ["one", "real"], ["masked"]),
        op("Mul", ["masked", "far"], ["away"]),
        op("Unsqueeze", ["away", "middle"], ["away_row"]),
        op("Add", ["likeness", "away_row"], ["scores"]),
        op("Softmax", ["scores"], ["attention"], axis=-1),
        op("MatMul", ["attention", "x"], ["seen"]),
        op("MatMul", ["seen", "values"], ["mixed"]),
        op("Add", ["x", "mixed"], ["sum"]),
        op("LayerNormalization", ["sum", "scale", "bias"], ["last_hidden_state"], axis=-1),
        *more,
    ]
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
           for name in ("input_ids", "attention_mask", "token_type_ids")]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
    used = {name for node in nodes for name in node.input}
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items() if name in used]
    graph = helper.make_graph(nodes, name, ids, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, f"{name}.onnx")


FIRST_TOKEN = [
    helper.make_node("Gather", ["last_hidden_state", "zero"], ["first"], axis=1),
    helper.make_node("MatMul", ["first", "head"], ["logits"]),
]


def head(classes):
    zero = helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.array(0, np.int64)))
    return dict(more=[zero, *FIRST_TOKEN], output="logits", shape=["batch", classes], weights={"head": (SIZE, classes)})


if __name__ == "__main__":
    with open("tokenizer.json", "w") as file:
        json.dump(tokenizer(), file, indent=1)
        file.write("\n")
    save("encoder", [], "last_hidden_state", ["batch", "sequence", SIZE], {})
    save("classifier", **head(3))
    save("ranker", **head(1))
