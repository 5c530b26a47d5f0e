"""Models that read text, asked by OpenAI's own client: each answer equals the model run alone on tokens made by hand."""

import asyncio
import json
import re
import shutil

import httpx
import numpy as np
import onnxruntime
import openai
import pytest

from serving import ROOT, Server, counted

MODELS = ROOT / "crates" / "text" / "tests" / "models"
VOCABULARY = json.loads((MODELS / "tokenizer.json").read_text())["model"]["vocab"]
AT_ONCE = 48
LONGEST = 48
SETTINGS = f"slo_ms = 30000\nmax_batch = 16\n[text]\nmax_length = {LONGEST}\n"


def write(repository):
    for name in ("encoder", "classifier", "ranker"):
        (repository / name / "1").mkdir(parents=True)
        shutil.copy(MODELS / f"{name}.onnx", repository / name / "1" / "model.onnx")
        shutil.copy(MODELS / "tokenizer.json", repository / name)
        (repository / name / "model.toml").write_text(SETTINGS)


def pieces(word):
    """The longest known beginnings, one after the other."""
    found, rest = [], word
    while rest:
        mark = "##" if found else ""
        length = next((end for end in range(len(rest), 0, -1) if mark + rest[:end] in VOCABULARY), 0)
        if not length:
            return [VOCABULARY["[UNK]"]]
        found.append(VOCABULARY[mark + rest[:length]])
        rest = rest[length:]
    return found


def tokens(text):
    return [piece for word in re.findall(r"\w+|[^\w\s]", text.lower()) for piece in pieces(word)]


def alone(session, *texts):
    """What the model gives for a text or a pair, of one row."""
    ids, types = [VOCABULARY["[CLS]"]], [0]
    for kind, text in enumerate(texts):
        part = [*tokens(text), VOCABULARY["[SEP]"]]
        ids, types = ids + part, types + [kind] * len(part)
    row = lambda numbers: np.array([numbers], np.int64)
    feed = {"input_ids": row(ids), "attention_mask": row([1] * len(ids)), "token_type_ids": row(types)}
    return session.run(None, feed)[0][0], len(ids)


def session(name):
    return onnxruntime.InferenceSession(str(MODELS / f"{name}.onnx"), providers=["CPUExecutionProvider"])


def sentence(random):
    words = [word for word in VOCABULARY if word.isalpha()]
    length = int(np.clip(random.lognormal(1.8, 0.8), 1, LONGEST - 2))
    return " ".join(random.choice(words, length))


def client(server, kind=openai.OpenAI):
    return kind(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("engine", ["cpu", "onnxruntime"])
def test_vectors_equal_those_of_each_text_alone(tmp_path, engine):
    write(tmp_path)
    random, encoder = np.random.default_rng(5), session("encoder")
    calls = [[sentence(random) for _ in range(random.integers(1, 5))] for _ in range(AT_ONCE)]

    async def ask_all(server):
        async with client(server, openai.AsyncOpenAI) as asker:
            return await asyncio.gather(*(asker.embeddings.create(model="encoder", input=texts) for texts in calls))

    with Server(tmp_path, "--engine", engine) as server:
        for texts, answer in zip(calls, asyncio.run(ask_all(server)), strict=True):
            expected = []
            for text in texts:
                rows, count = alone(encoder, text)
                expected.append((rows.mean(axis=0), count))
            assert answer.usage.prompt_tokens == sum(count for _, count in expected)
            for row, (vector, _) in zip(answer.data, expected, strict=True):
                np.testing.assert_allclose(row.embedding, vector / np.linalg.norm(vector), atol=1e-5)
        requests = sum(map(len, calls))
        text = server.scrape()
        assert counted(text, "nv_inference_request_success", model="encoder") == requests
        # Texts of one call share batches, and with those of others.
        assert counted(text, "nv_inference_exec_count", model="encoder") < requests


def test_floats_and_fewer_dimensions(tmp_path):
    write(tmp_path)
    with Server(tmp_path) as server, client(server) as asker:
        plain = asker.embeddings.create(model="encoder", input="the river", encoding_format="float").data[0].embedding
        packed = asker.embeddings.create(model="encoder", input="the river").data[0].embedding
        np.testing.assert_allclose(plain, packed, atol=1e-7)
        short = asker.embeddings.create(model="encoder", input="the river", dimensions=8).data[0].embedding
        np.testing.assert_allclose(short, np.array(plain[:8]) / np.linalg.norm(plain[:8]), atol=1e-6)
        assert {model.id for model in asker.models.list()} == {"encoder", "classifier", "ranker"}


def test_classes_and_ranks_equal_the_model_alone(tmp_path):
    write(tmp_path)
    labels = {"id2label": {"0": "bad", "1": "fine", "2": "good"}}
    (tmp_path / "classifier" / "config.json").write_text(json.dumps(labels))
    texts = ["the food was terrible", "a lovely little book", "nothing is known"]
    with Server(tmp_path) as server, httpx.Client(base_url=f"http://{server.http}/v1") as asker:
        answer = asker.post("/classify", json={"model": "classifier", "input": texts}).json()
        for row, text in zip(answer["data"], texts, strict=True):
            logits, _ = alone(session("classifier"), text)
            expected = np.exp(logits - logits.max())
            np.testing.assert_allclose(row["probs"], expected / expected.sum(), atol=1e-5)
            assert row["label"] == labels["id2label"][str(int(logits.argmax()))]
        query = "what is the capital of france?"
        answer = asker.post("/rerank", json={"model": "ranker", "query": query, "documents": texts}).json()
        scores = {row["index"]: row["relevance_score"] for row in answer["results"]}
        for at, text in enumerate(texts):
            logit, _ = alone(session("ranker"), query, text)
            assert abs(scores[at] - 1 / (1 + np.exp(-logit[0]))) < 1e-5
        assert [row["relevance_score"] for row in answer["results"]] == sorted(scores.values(), reverse=True)


def test_errors_are_those_that_the_client_knows(tmp_path):
    write(tmp_path)
    with Server(tmp_path) as server, client(server) as asker:
        with pytest.raises(openai.NotFoundError, match="unknown model"):
            asker.embeddings.create(model="nobody", input="a")
        with pytest.raises(openai.BadRequestError, match=f"more than {LONGEST} tokens"):
            asker.embeddings.create(model="encoder", input="river " * 100)
        cut = asker.embeddings.create(model="encoder", input="river " * 100, extra_body={"truncate": True})
        assert cut.usage.total_tokens == LONGEST
        with pytest.raises(openai.BadRequestError, match="/v1/rerank"):
            asker.embeddings.create(model="ranker", input="a")
