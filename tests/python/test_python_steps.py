"""Steps written in Python: functions with state, which requests join and leave at each step."""

import contextlib
import http.client
import json
import sys
import textwrap

import numpy as np
import pytest

from serving import ROOT
from test_python_models import PATIENT, package_of_the_checkout, refused, reports, serving, until, write  # noqa: F401

sys.path.insert(0, str(ROOT / "clients" / "python"))
from ripieno import Refused

UNMEASURED = PATIENT + 'batching = "trust"\nalpha_ms = 1\nbeta_ms = 1\nwarm_up = 0\n'

RNN = """
import time
import numpy as np, ripieno

RANDOM = np.random.default_rng(3)
U, W, V = (RANDOM.standard_normal(shape).astype(np.float32) / 3 for shape in ((4, 8), (8, 8), (8, 2)))

@ripieno.model(inputs={"x": ripieno.f32(4)}, outputs={"y": ripieno.f32(2), "rows": ripieno.i64()}, state={"h": ripieno.f32(8)}, max_length=64)
def step(x, h):
    time.sleep(0.001)
    h = np.tanh(x @ U + h @ W)
    return {"y": h @ V, "rows": np.full(len(x), len(x)), "h": h}

@ripieno.model(inputs={"h": ripieno.f32(8)}, outputs={"last": ripieno.f32(2)})
def head(h):
    return h @ V
"""


def rnn(x):
    """The outputs of RNN for each step of one request."""
    scope = {}
    exec(RNN.replace("import time", "import sys; sys.path.insert(0, %r); import time" % str(ROOT / "clients" / "python")), scope)
    h, ys = np.zeros((1, 8), np.float32), []
    for element in x[0]:
        left = scope["step"](element[None], h)
        h = left["h"]
        ys.append(left["y"][0])
    return np.array(ys)[None]


def sequence(length, seed):
    return np.random.default_rng(seed).standard_normal((1, length, 4)).astype(np.float32)


def test_a_recurrent_network_is_answered_alone_and_beside_others(tmp_path):
    write(tmp_path / "tried", "rnn", RNN)
    with serving(tmp_path / "tried") as (server, client):
        report = reports(server)["rnn"]
        # The number of rows depends on the batch: the trial finds rows that depend on each other.
        assert "rows of function \"step\" depend on each other" in report["unbatched"], report
    write(tmp_path / "trusted", "rnn", RNN, PATIENT + 'batching = "trust"\n')
    with serving(tmp_path / "trusted") as (server, client):
        report = reports(server)["rnn"]
        assert report["unbatched"] is None and [block["name"] for block in report["blocks"]] == ["step", "head"]
        assert report["inputs"] == ["x FP32 [-1, -1, 4]"]
        assert report["outputs"] == ["y FP32 [-1, -1, 2]", "rows INT64 [-1, -1]", "last FP32 [-1, 2]"]
        sent = [sequence(1 + at * 5 % 29, at) for at in range(48)]
        alone = [client.infer("rnn", {"x": x}) for x in sent[:8]]
        started = [client.start("rnn", {"x": x}) for x in sent]
        beside = [answer.result() for answer in started]
        for x, answer in zip(sent, alone + beside[8:]):
            np.testing.assert_allclose(answer["y"], rnn(x), rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(answer["last"], rnn(x)[:, -1], rtol=1e-4, atol=1e-6)
        for one, other in zip(alone, beside):
            np.testing.assert_allclose(one["y"], other["y"], rtol=1e-4, atol=1e-6)
            assert (one["rows"] == 1).all()
        sizes = [answer["rows"][0] for answer in beside]
        assert any(len(set(of_steps)) > 1 for of_steps in sizes), "requests join and leave between steps"
        long = sequence(65, 1)
        assert refused(client, "rnn", {"x": long}).status == 400


def test_the_trial_of_a_step_lets_requests_share_batches(tmp_path):
    code = RNN.replace('"rows": ripieno.i64()', "").replace('"rows": np.full(len(x), len(x)), ', "")
    write(tmp_path, "rnn", code)
    write(tmp_path, "off", code, PATIENT.replace("max_batch = 8\n", 'batching = "off"\n'))
    with serving(tmp_path) as (server, client):
        assert reports(server)["rnn"]["unbatched"] is None, reports(server)["rnn"]
        assert reports(server)["off"]["unbatched"] is not None
        for name in ("rnn", "off"):
            for at in range(4):
                x = sequence(3 + at, at)
                np.testing.assert_allclose(client.infer(name, {"x": x})["y"], rnn(x), rtol=1e-4, atol=1e-6)


def test_a_configuration_may_say_the_same_and_bound_a_batch(tmp_path):
    toml = """
        batching = "trust"
        walk = "repeat"
        max_length = 64
        [[block]]
        name = "step"
        max_batch = 2
        [block.inputs]
        h = "previous.h"
        [[block]]
        name = "head"
        once = true
        [block.inputs]
        h = "step.h"
        [[output]]
        name = "y"
        from = "step.y"
        take = "every"
        [[output]]
        name = "rows"
        from = "step.rows"
        take = "every"
        [[output]]
        name = "last"
        from = "head.last"
    """
    write(tmp_path, "rnn", RNN, PATIENT + textwrap.dedent(toml))
    with serving(tmp_path) as (server, client):
        assert reports(server)["rnn"]["error"] is None, reports(server)["rnn"]
        sent = [sequence(8, at) for at in range(16)]
        started = [client.start("rnn", {"x": x}) for x in sent]
        for x, answer in zip(sent, started):
            np.testing.assert_allclose(answer.result()["y"], rnn(x), rtol=1e-4, atol=1e-6)
            assert answer.result()["rows"].max() <= 2


COLLATZ = """
import numpy as np, ripieno

@ripieno.model(inputs={"n": ripieno.i64()}, outputs={"n": ripieno.i64()})
def begin(n):
    if (n == 9999).any():
        raise ripieno.BadRequest("not 9999")
    return n

@ripieno.model(outputs={"n": ripieno.i64()}, state={"n": ripieno.i64()}, ended="done", max_steps=500)
def step(n):
    n = np.where(n % 2 == 0, n // 2, 3 * n + 1)
    return {"n": n, "done": n == 1}
"""


def collatz(n):
    seen = []
    while not seen or n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        seen.append(n)
    return seen


def answers_collatz(client):
    """Requests of many lengths at once, and one that is streamed."""
    numbers = [1 + at * 7 % 60 for at in range(60)]
    started = [client.start("collatz", {"n": np.array([n])}) for n in numbers]
    for n, answer in zip(numbers, started):
        assert answer.result()["n"][0].tolist() == collatz(n)
    steps = [event["n"] for event in client.stream("collatz", {"n": np.array([27])}) if "n" in event]
    assert np.ravel(steps).tolist() == collatz(27)


def test_a_loop_runs_until_each_request_has_ended(tmp_path):
    write(tmp_path, "collatz", COLLATZ, PATIENT + '[[input]]\nname = "n"\ndatatype = "INT64"\nshape = [-1]\nmin = 1\nmax = 10000\n')
    with serving(tmp_path) as (server, client):
        report = reports(server)["collatz"]
        assert (report["unbatched"], report["inputs"], report["outputs"]) == (None, ["n INT64 [-1]"], ["n INT64 [-1, -1]"])
        answers_collatz(client)
        refusal = refused(client, "collatz", {"n": np.array([9999])})
        assert refusal.status == 400 and "not 9999" in str(refusal)


DECODER = """
import numpy as np, ripieno

R = np.random.default_rng(1)
E, W, V = (R.standard_normal(shape).astype(np.float32) for shape in ((300, 16), (16, 16), (16, 300)))

@ripieno.model(inputs={"h": ripieno.f32(16)}, outputs={"token": ripieno.i64()}, state={"g": ripieno.f32(16), "token": ripieno.i64(initial=1)},
               ended="done", max_steps=12)
def decode(h, g, token):
    g = np.tanh(E[token] + g @ W + h)
    token = (g @ V).argmax(1)
    return {"g": g, "token": token, "done": token == 299}
"""


def test_a_loop_that_hardly_ends_shares_batches(tmp_path):
    write(tmp_path, "decoder", DECODER)
    mixing = DECODER.replace("(g @ V).argmax(1)", "(g @ V + g.sum(0) @ V).argmax(1)")
    write(tmp_path, "mixing", mixing)
    with serving(tmp_path) as (server, client):
        said = reports(server)
        assert said["decoder"]["unbatched"] is None, said["decoder"]
        assert "rows of function \"decode\" depend on each other" in said["mixing"]["unbatched"]
        sent = [np.random.default_rng(at).standard_normal((1, 16)).astype(np.float32) for at in range(24)]
        for name in said:
            alone = [client.infer(name, {"h": h})["token"].tolist() for h in sent]
            beside = [answer.result()["token"].tolist() for answer in [client.start(name, {"h": h}) for h in sent]]
            assert beside == alone, name


KINDS = """
import numpy as np, ripieno

STATE = {"sum": ripieno.f32(3), "count": ripieno.i32(), "even": ripieno.bool_(), "seen": ripieno.u8(2, 2), "half": ripieno.f16(1)}

@ripieno.model
class Net:
    def load(self, device):
        self.limit = np.int64(5)

    @ripieno.stage(inputs={"x": ripieno.f32(3)}, state=STATE)
    def encode(self, x, sum, count, even, seen, half):
        return sum + x, count + 1, ~even, seen + np.uint8(1), half + x[:, :1].astype(np.float16)

    @ripieno.stage(inputs={"times": ripieno.i64()}, outputs={"sum": ripieno.f32(3), "at": ripieno.i32()},
                   state={**STATE, "at": ripieno.i32(initial=-7)}, ended="done", max_steps=20)
    def decode(self, times, sum, count, even, seen, half, at):
        assert seen.dtype == np.uint8 and half.dtype == np.float16 and even.dtype == bool
        sum = sum * 2 + even[:, None] + seen[:, 1] [:, :1] + half
        return {"sum": sum, "at": at + 1, "count": count, "even": ~even, "seen": seen, "half": half, "done": at + 8 >= times}
"""


def kinds(x, times):
    total, half, count = x[0].sum(0, dtype=np.float32), np.float32(x[0, :, 0].astype(np.float16).sum()), x.shape[1]
    even, sums = count % 2 == 1, []
    for _ in range(times):
        total = total * 2 + even + count + half
        even = not even
        sums.append(total)
    return np.array(sums)


def test_states_of_several_types_go_from_an_encoder_to_a_decoder(tmp_path):
    write(tmp_path, "kinds", KINDS)
    with serving(tmp_path) as (server, client):
        report = reports(server)["kinds"]
        assert report["error"] is None and sorted(report["inputs"]) == ["times INT64 [-1]", "x FP32 [-1, -1, 3]"]
        assert sorted(report["outputs"]) == ["at INT32 [-1, -1]", "sum FP32 [-1, -1, 3]"]
        sent = [(np.full((1, 1 + at % 5, 3), at % 4, np.float32), 1 + at % 7) for at in range(40)]
        started = [client.start("kinds", {"x": x, "times": np.array([times])}) for x, times in sent]
        for (x, times), answer in zip(sent, started):
            np.testing.assert_allclose(answer.result()["sum"][0], kinds(x, times), rtol=1e-3)
            assert answer.result()["at"][0].tolist() == list(range(-6, times - 6))


FAULTY = """
import os
import numpy as np, ripieno

@ripieno.model(inputs={"code": ripieno.i64()}, outputs={"t": ripieno.i64()}, state={"h": ripieno.f32(2), "t": ripieno.i64()}, ended="done", max_steps=30)
def step(code, h, t):
    answer = {"h": h + 1, "t": t + 1, "done": t + 1 >= 6}
    for which in code[t == 3]:
        if which == 1:
            raise ValueError("the fourth step\\nand its secret")
        if which == 2:
            answer["h"] = h[:, :1]
        if which == 3:
            answer["done"] = answer["done"].astype(np.float32)
        if which == 4:
            del answer["h"]
        if which == 5:
            os._exit(3)
        if which == 6:
            answer["h"] = np.array(["a", "b"])
        if which == 7:
            answer["done"] = np.bool_(True)
        if which == 8:
            raise ripieno.BadRequest("not today")
        if which == 9:
            answer["t"] = t.astype(np.float64)
        if which == 10:
            return None
    return answer
"""

SEEN = {
    1: (500, "ValueError: the fourth step"),
    2: (500, "state 'h' of step has the shape [1, 1], not [1, 2]"),
    3: (500, "'done', the end of step, is float32, not BOOL"),
    4: (500, "state 'h' of step is missing; it returned t, done"),
    5: (503, "exit status: 3"),
    6: (500, "state 'h' of step has the shape [2], not [1, 2]"),
    7: (500, "'done', the end of step, has the shape [], not [1]"),
    8: (400, "not today"),
    9: (500, "state 't' of step is float64, not INT64"),
    10: (500, "step returned None; return t, h, done"),
}


def test_a_fault_of_a_step_ends_its_request_only(tmp_path):
    write(tmp_path, "faulty", FAULTY, UNMEASURED)
    with serving(tmp_path) as (server, client):
        raised = [code for code in SEEN if code != 5]
        codes = [code for bad in raised for code in (0, 0, bad, 0)] * 2
        started = [client.start("faulty", {"code": np.array([code])}) for code in codes]
        for code, answer in zip(codes, started):
            if code == 0:
                assert answer.result()["t"][0].tolist() == [1, 2, 3, 4, 5, 6]
                continue
            with pytest.raises(Refused) as refusal:
                answer.result()
            status, text = SEEN[code]
            assert refusal.value.status == status and text in str(refusal.value), (code, str(refusal.value))
            assert "secret" not in str(refusal.value)


def test_a_worker_that_ends_within_a_walk_is_one_answer(tmp_path):
    write(tmp_path, "faulty", FAULTY, UNMEASURED)
    with serving(tmp_path) as (server, client):
        for _ in range(3):
            refusal = refused(client, "faulty", {"code": np.array([5])})
            assert refusal.status == 503 and SEEN[5][1] in str(refusal)
            until(lambda: walks(client), "the worker is back")
        started = [client.start("faulty", {"code": np.array([code])}) for code in (0, 0, 5, 0)]
        for code, answer in zip((0, 0, 5, 0), started):
            with contextlib.suppress(Refused):
                assert answer.result()["t"].shape == (1, 6) and code == 0
        until(lambda: walks(client), "the worker is back")


def walks(client):
    with contextlib.suppress(Refused):
        return client.infer("faulty", {"code": np.array([0])})["t"][0].tolist() == [1, 2, 3, 4, 5, 6]


ENDLESS = """
import time
import numpy as np, ripieno

# Request 0 never ends. Request 1 ends once it has shared a batch and then been alone.
@ripieno.model(inputs={"kind": ripieno.i64()}, outputs={"t": ripieno.i64()}, state={"t": ripieno.i64(), "shared": ripieno.bool_()}, ended="done", max_steps=100000)
def step(kind, t, shared):
    time.sleep(0.001)
    return {"t": t + 1, "shared": shared | (len(t) > 1), "done": (kind == 1) & shared & (len(t) == 1)}
"""


def test_a_client_that_goes_away_leaves_the_batches(tmp_path):
    write(tmp_path, "endless", ENDLESS, UNMEASURED.replace("slo_ms = 20000", "slo_ms = 600000").replace("_ms = 1", "_ms = 0.01"))
    with serving(tmp_path) as (server, client):
        going = http.client.HTTPConnection(server.http.removeprefix("http://"))
        going.request("POST", "/v2/models/endless/generate_stream", json.dumps({"kind": [0]}))
        answer = going.getresponse()
        assert answer.status == 200 and answer.readline().startswith(b"data:")
        other = client.stream("endless", {"kind": np.array([1])})
        next(other)
        answer.close()
        going.close()
        assert 0 < len(list(other)) < 50_000, "it ends since the other has left, and not with it at the last step"


def test_the_order_of_blocks_is_that_of_the_configuration(tmp_path):
    code = """
        import ripieno

        @ripieno.model(inputs={"h": ripieno.f32(2)}, outputs={"y": ripieno.f32(2)})
        def second(h):
            return 10 * h

        @ripieno.model(inputs={"z": ripieno.f32(2)}, outputs={"z": ripieno.f32(2)})
        def unused(z):
            return 0 * z

        @ripieno.model(inputs={"x": ripieno.f32(2)}, outputs={"h": ripieno.f32(2)})
        def first(x):
            return x + 1
    """
    write(tmp_path, "chain", code, PATIENT + '[[block]]\nname = "first"\n[[block]]\nname = "second"\n')
    with serving(tmp_path) as (server, client):
        x = np.ones((3, 2), np.float32)
        np.testing.assert_array_equal(client.infer("chain", {"x": x})["y"], 10 * (x + 1))


def test_cells_of_a_tree_may_be_functions(tmp_path):
    code = """
        import ripieno

        @ripieno.model(inputs={"n": ripieno.f32(1)}, outputs={"h": ripieno.f32(1)})
        def leaf(n):
            return n

        @ripieno.model(inputs={"left": ripieno.f32(1), "right": ripieno.f32(1)}, outputs={"h": ripieno.f32(1)})
        def internal(left, right):
            return 2 * left + right
    """
    toml = """
        walk = "tree"
        max_length = 15
        [[block]]
        name = "leaf"
        [block.inputs]
        n = "request"
        [[block]]
        name = "internal"
        [block.inputs]
        left = "child0.h"
        right = "child1.h"
        [[output]]
        name = "h"
        from = "root.h"
    """
    write(tmp_path, "tree", code, PATIENT + "\n".join(line.strip() for line in toml.splitlines()))
    with serving(tmp_path) as (server, client):
        assert reports(server)["tree"]["error"] is None, reports(server)["tree"]
        children = np.array([[[-1, -1], [-1, -1], [0, 1], [-1, -1], [2, 3]]])
        n = np.array([[[1], [2], [0], [5], [0]]], np.float32)
        started = [client.start("tree", {"children": children, "n": n * at}) for at in range(1, 20)]
        for at, answer in enumerate(started, 1):
            assert answer.result()["h"].tolist() == [[at * (2 * (2 * 1 + 2) + 5)]]


def test_torch_steps(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    code = """
        import ripieno, torch
        torch.manual_seed(1)

        @ripieno.model(inputs={"x": ripieno.f32(4)}, outputs={"y": ripieno.f32(8)}, state={"h": ripieno.f32(8), "c": ripieno.f32(8)}, tensors="torch")
        class Lstm:
            def load(self, device):
                self.cell = torch.nn.LSTMCell(4, 8).to(device)

            def run(self, x, h, c):
                h, c = self.cell(x, (h, c))
                return {"y": h, "h": h, "c": c}
    """
    write(tmp_path, "lstm", code)
    torch.manual_seed(1)
    cell = torch.nn.LSTMCell(4, 8)
    with serving(tmp_path) as (server, client):
        assert reports(server)["lstm"]["unbatched"] is None, reports(server)["lstm"]
        sent = [sequence(1 + at % 9, at) for at in range(30)]
        started = [client.start("lstm", {"x": x}) for x in sent]
        for x, answer in zip(sent, started):
            h, expected = None, []
            for element in torch.from_numpy(x[0]):
                h = cell(element[None], h)
                expected.append(h[0].detach().numpy()[0])
            np.testing.assert_allclose(answer.result()["y"][0], expected, rtol=1e-4, atol=1e-5)


def test_steps_that_cannot_be_served_say_why(tmp_path):
    head = "import numpy as np, ripieno\nf = ripieno.f32\n"
    one = '@ripieno.model(inputs={"x": f(4)}, outputs={"y": f(4)}, state={"h": f(4)})\ndef one(x, h): return {"y": x, "h": h}\n'
    loop = '@ripieno.model(outputs={"z": f(4)}, state={"h": f(4)}, ended="done", max_steps=5)\ndef LOOP(h): return {"z": h, "h": h, "done": h[:, 0] < 1}\n'
    causes = {
        "open": (one.replace('state={"h": f(4)}', 'state={"h": f(None)}'), "state 'h' of one has an open dimension"),
        "length": (one.replace('inputs={"x": f(4)}', 'inputs={"x": f(ripieno.LENGTH)}'), "leave out LENGTH"),
        "stateless": (one.replace('state={"h": f(4)}', 'ended="done"'), "is for a step: name the arrays that it carries on"),
        "unbounded": (loop.replace("max_steps=5", "max_steps=0"), "needs max_steps"),
        "twice": (loop.replace("LOOP", "a") + loop.replace("LOOP", "b"), "functions 'a' and 'b' both run until their end"),
        "late": (loop.replace("LOOP", "a") + one, "function 'one' steps along the request and stands after 'a'"),
        "layers": (one + one.replace("one", "two").replace('"x"', '"y"').replace("(x", "(y").replace(": x", ": y"), "state 'h' of function 'two' has the name of an array"),
        "silent": (one.replace('outputs={"y": f(4)}, ', ""), "no output of its functions is left for clients"),
        "kind": (one.replace('outputs={"y": f(4)}', 'outputs={"h": f(5)}'), "output 'h' of one is also its state or end, but another tensor"),
        "bytes": (one.replace('state={"h": f(4)}', 'state={"h": ripieno.string(4)}'), "'h' of BYTES, which no cell can carry"),
        "initial": (one.replace('inputs={"x": f(4)}', 'inputs={"x": f(4, initial=1)}'), "'x' has initial, which is for states"),
        "arguments": (one.replace("def one(x, h)", "def one(x)"), "one takes x, but is called with x, h"),
    }
    write(tmp_path, "good", head + one)
    for name, (code, _) in causes.items():
        write(tmp_path, name, head + code)
    blocks = '[[block]]\nname = "one"\nexit_when = "y > 1"\n'
    causes["chain"] = (None, "its configuration describes other blocks than the state of its functions does")
    write(tmp_path, "chain", head + one + loop, PATIENT + blocks + '[[block]]\nname = "LOOP"\n')
    with serving(tmp_path) as (server, client):
        said = reports(server)
        assert said["good"]["error"] is None
        for name, (_, text) in causes.items():
            assert text in (said[name]["error"] or ""), (name, said[name]["error"])
