"""Section A: a request harms no other, be it by its values, its shape, or a model that mixes the rows of a batch."""

import asyncio
import json
import math
import random

import numpy as np
import tritonclient.grpc.aio as grpc_client
from tritonclient.utils import InferenceServerException

import models
import wire
from bench import is_served, tally

POLICIES = ("unified", "cellular", "dva", "lazy")
MORE_POLICIES = ("deferred", "serial", "timeout", "eager", "clockwork", "nexus", "shepherd", "lazy-oracle", "delay-batch", "bucketed")
NEIGHBOURS = 24


async def attack(bench):
    with bench.repository() as repository:
        models.isolation(repository)
        async with bench.server(repository) as server:
            await neighbours(bench, server)
            await dependent_rows(bench, server)
            await integers(bench, server)
    with bench.repository() as repository:
        models.put(repository, "text", models.text())
        models.put(repository, "hidden_lookup", models.hidden_lookup())
        models.put(repository, "relu", models.relu())
        async with bench.server(repository, "--engine", "onnxruntime") as server:
            what = "text that is not UTF-8 among good text (onnxruntime)"
            await bench.row(server, "A1", what, lambda: broken_text(bench, server))
            what = "an id beyond the table among good ones (onnxruntime)"
            await bench.row(server, "A1", what, lambda: poisoned(bench, server, "hidden_lookup", 2, 10))
            what = "Relu of NaN stays NaN (onnxruntime)"
            await bench.row(server, "A4", what, lambda: not_a_number(bench, server))
    await shapes(bench)


async def neighbours(bench, server):
    cases = (("lookup", 3, 100, "an id beyond the table among good ones"),
             ("hidden_lookup", 2, 10, "an id that only the model can find wrong, among good ones"))
    for model, good, bad, what in cases:
        await bench.row(server, "A1", what, lambda: poisoned(bench, server, model, good, bad))
    await bench.row(server, "A1", "a poisoned id among good ones, over gRPC", lambda: poisoned_grpc(bench, server))


async def poisoned(bench, server, model, good, bad):
    """Bursts in which two requests are bad. The good ones must be answered, rightly; the bad ones hear of their own value."""
    client = bench.client(server)
    expected = models.TABLE[good * good if model == "hidden_lookup" else good].tolist()
    of = lambda value: wire.infer(model, ("id", "INT64", [1, 1], [value]))
    failed, right, culprits, rounds = [], 0, [], 5 if bench.short else 30
    for _ in range(rounds):
        values = [good] * NEIGHBOURS + [bad] * 2
        random.Random(7).shuffle(values)
        answers = await asyncio.gather(*(client.ask(of(value), "poison") for value in values))
        for value, answer in zip(values, answers):
            if value == bad:
                culprits.append(answer.status)
            elif answer.status == 200 and answer.output("y") == expected:
                right += 1
            else:
                failed.append(answer.status)
    await client.close()
    held = not failed and not any(200 <= status < 300 for status in culprits)
    return held, f"{right} of {rounds * NEIGHBOURS} neighbours right; bad ones: {tally(culprits)}; others: {tally(failed) or 'none'}"


async def poisoned_grpc(bench, server):
    client = grpc_client.InferenceServerClient(server.grpc)

    async def ask(value):
        tensor = grpc_client.InferInput("id", [1, 1], "INT64")
        tensor.set_data_from_numpy(np.array([[value]], np.int64))
        bench.ledger.sent += 1
        try:
            result = await client.infer("hidden_lookup", [tensor])
            status = "OK" if result.as_numpy("y").tolist() == [models.TABLE[value * value].tolist()] else "WRONG"
        except InferenceServerException as error:
            status = error.status().removeprefix("StatusCode.")
        bench.ledger.answered += 1
        return status

    good, bad, rounds = [], [], 5 if bench.short else 20
    for _ in range(rounds):
        statuses = await asyncio.gather(*(ask(10 if at % 12 == 5 else 2) for at in range(NEIGHBOURS)))
        good += [status for at, status in enumerate(statuses) if at % 12 != 5]
        bad += [status for at, status in enumerate(statuses) if at % 12 == 5]
    await client.close()
    return set(good) == {"OK"} and "OK" not in bad, f"neighbours: {tally(good)}; bad ones: {tally(bad)}"


async def broken_text(bench, server):
    """The bytes are sent in binary, since JSON cannot hold them."""
    client = bench.client(server)

    def of(value):
        tensor = {"name": "x", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": len(value) + 4}}
        head = json.dumps({"inputs": [tensor]}).encode()
        body = head + len(value).to_bytes(4, "little") + value
        return wire.post("/v2/models/text/infer", body, [f"Inference-Header-Content-Length: {len(head)}"])

    failed, culprits, rounds = [], [], 5 if bench.short else 30
    for _ in range(rounds):
        values = [b"good"] * NEIGHBOURS + [b"\xff\xfe"] * 2
        random.Random(7).shuffle(values)
        answers = await asyncio.gather(*(client.ask(of(value), "text") for value in values))
        for value, answer in zip(values, answers):
            if value != b"good":
                culprits.append(answer.status)
            elif answer.status != 200 or answer.output("y") != ["good"]:
                failed.append(answer.status)
    await client.close()
    return not failed, f"{len(failed)} of {rounds * NEIGHBOURS} neighbours failed ({tally(failed)}); bad ones: {tally(culprits)}"


async def dependent_rows(bench, server):
    softmax = lambda x: (np.exp(x - x.max()) / np.exp(x - x.max()).sum())
    cases = (
        ("flat_softmax", [3], softmax, "a softmax over [n], which has no batch"),
        ("cumulative", [1, 3], lambda x: x, "a running sum over the batch"),
        ("centred", [1, 3], lambda x: x * 0, "a mean over the batch"),
        ("shuffled", [1, 4], lambda x: x, "a reshape that mixes the rows"),
        ("single", [1, 4], None, "a first dimension fixed to one"),
    )
    for model, shape, expected, what in cases:
        await bench.row(server, "A2", what, lambda: mixes(bench, server, model, shape, expected))


async def mixes(bench, server, model, shape, expected):
    """Random requests at once. Each must be answered as if alone, or the model must not be served at all."""
    client = bench.client(server)
    served, reason = await is_served(client, model)
    if not served:
        await client.close()
        return model != "single", f"not served: {reason}"
    generator, wrong, statuses = np.random.default_rng(5), 0, []
    for _ in range(4 if bench.short else 20):
        values = generator.standard_normal((16, *shape)).astype(np.float32)
        asked = [wire.infer(model, ("x", "FP32", shape, value.ravel().tolist())) for value in values]
        answers = await asyncio.gather(*(client.ask(request, "rows") for request in asked))
        statuses += [answer.status for answer in answers]
        for value, answer in zip(values, answers):
            if answer.status == 200 and expected is not None:
                close = np.allclose(answer.output("y"), expected(value).ravel(), rtol=1e-3, atol=1e-4)
                wrong += not close
    await client.close()
    return wrong == 0 and set(statuses) == {200}, f"{wrong} of {len(statuses)} answers wrong; {tally(statuses)}"


async def integers(bench, server):
    cases = (("wide_integers", 7, 7 + 2**40, "n + 2^40"), ("square_integers", 100_000, 10**10, "100000 * 100000"),
             ("wide_integers", 2**40, 2**41, "2^40 from the client"))
    for model, value, expected, what in cases:
        what = f"{what} in INT64 on the built-in engine"
        await bench.row(server, "A4", what, lambda: exact(bench, server, model, value, expected))
    await bench.row(server, "A4", "Relu of NaN stays NaN, or is refused", lambda: not_a_number(bench, server))


async def exact(bench, server, model, value, expected):
    """Right, or refused with words that name the engine that can; never wrong, never an accident."""
    client = bench.client(server)
    served, reason = await is_served(client, model)
    if not served:
        await client.close()
        return "onnxruntime" in reason, f"not served: {reason}"
    answer = await client.ask(wire.infer(model, ("n", "INT64", [1, 1], [value])))
    await client.close()
    if answer.status != 200:
        text = answer.body[:200].decode(errors="replace")
        return answer.status == 400 or "onnxruntime" in text, f"{answer.status}: {text}"
    return answer.output("y") == [expected], f"{answer.output('y')[0]}"


async def not_a_number(bench, server):
    """Asked in binary, answered in JSON with the bare word NaN, as Triton writes it."""
    client = bench.client(server)
    values = np.array([[np.nan, -1.0]], np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [tensor]}).encode()
    request = wire.post("/v2/models/relu/infer", head + values.tobytes(), [f"Inference-Header-Content-Length: {len(head)}"])
    answer = await client.ask(request)
    await client.close()
    if answer.status != 200:
        text = answer.body[:200].decode(errors="replace")
        return answer.status == 400 and "onnxruntime" in text, f"{answer.status}: {text}"
    found = answer.output("y")
    return isinstance(found[0], float) and math.isnan(found[0]) and found[1] == 0, f"Relu([NaN, -1]) = {found}"


async def shapes(bench):
    """Requests of different shapes at once, under each policy; nobody said that they may be padded."""
    policies = POLICIES if bench.short else POLICIES + MORE_POLICIES
    for policy in policies:
        if not bench.wanted("A3", f"different shapes at once under {policy}"):
            continue
        with bench.repository() as repository:
            models.put(repository, "doubled", models.doubled())
            async with bench.server(repository, "--policy", policy) as server:
                what = f"different shapes at once under {policy}"
                await bench.row(server, "A3", what, lambda: mixed(bench, server))


async def mixed(bench, server):
    client = bench.client(server)
    ask = lambda size: client.ask(wire.infer("doubled", ("x", "FP32", [1, size], [float(size)] * size)), "shapes")
    one_among_twelve = await asyncio.gather(*(ask(5 if at == 6 else 4) for at in range(13)))
    sizes = [random.Random(11).randint(1, 40) for _ in range(64)]
    all_different = await asyncio.gather(*(ask(2 + at * 3 % 40) for at in range(len(sizes))))
    await client.close()
    right = sum(answer.status == 200 for answer in one_among_twelve), sum(answer.status == 200 for answer in all_different)
    values = all(
        answer.output("y") == [2.0 * (2 + at * 3 % 40)] * (2 + at * 3 % 40)
        for at, answer in enumerate(all_different) if answer.status == 200
    )
    return right == (13, 64) and values, f"{right[0]} of 13 with one odd shape, {right[1]} of 64 of many shapes answered"
