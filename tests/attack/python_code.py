"""Section P: code of a model in Python does its worst; each request has one answer, and everyone else has theirs.

The fault is chosen by the request. It comes among good requests of the same model, beside another model in Python. Good
requests may share the batch of one that ends the process, so they may hear 503 then, and nothing else.
"""

import asyncio
import os
import sys

import wire
from bench import tally
from serving import ROOT

SETTINGS = "slo_ms = 20000\nmax_batch = 8\nalpha_ms = 2\nbeta_ms = 5\nwarm_up = false\nbatching = \"trust\"\n"
LIMITS = "task_limit_s = 2\nmemory_limit_mb = 2048\n"
# Seconds for a process to be back; its pause doubles with each end.
BACK_S = 30

FAULTS = """
import ctypes, os, signal, sys, threading, time
import numpy as np, ripieno

def outputs(code):
    answer = {"y": np.stack([code, code + 1], 1)}
    for which in code:
        answer = FAULTS.get(int(which), lambda answer: answer)(answer)
    return answer

def raising(answer):
    raise ValueError("a secret\\nand more of it")

def refusing(answer):
    raise ripieno.BadRequest("not this one")

def segfault(answer):
    ctypes.string_at(0)

def endless(answer):
    while True:
        pass

def hoarding(answer):
    hoard = []
    while True:
        hoard.append(np.ones(1 << 24))

def printing(answer):
    print("much " * (2 << 20))
    return answer

def forking(answer):
    if os.fork() == 0:
        time.sleep(1000)
    return answer

def leaving_a_thread(answer):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return answer

def stopping(answer):
    os.kill(os.getpid(), signal.SIGSTOP)
    return answer

def closing(answer):
    os.closerange(3, 64)
    return answer

def recursing(answer):
    return recursing(answer)

FAULTS = {
    1: raising, 2: lambda answer: {"y": answer["y"][:, :1]}, 3: lambda answer: os._exit(3), 4: segfault, 5: endless, 6: hoarding,
    7: printing, 8: forking, 9: leaving_a_thread, 10: refusing, 11: stopping, 12: closing, 13: recursing,
    14: lambda answer: {"y": np.concatenate([answer["y"]] * 2)}, 15: lambda answer: None, 16: lambda answer: sys.exit("by itself"),
}
"""
WHOLE = """
@ripieno.model(inputs={"code": ripieno.i64()}, outputs={"y": ripieno.i64(2)})
def serve(code):
    return outputs(code)
"""
# A walk of four steps; the fault is in the third.
STEPS = """
@ripieno.model(inputs={"code": ripieno.i64()}, outputs={"y": ripieno.i64(2)}, state={"t": ripieno.i64()}, ended="done", max_steps=9)
def step(code, t):
    answer = outputs(np.where(t == 2, code, 0))
    return answer and {**answer, "t": t + 1, "done": t >= 3}
"""

# What was tried, the number of the fault, and the statuses that it may have.
CASES = (
    ("an exception", 1, {500}),
    ("an output of a wrong shape", 2, {500}),
    ("an exit of the process", 3, {503}),
    ("a segmentation fault", 4, {503}),
    ("an endless loop", 5, {503}),
    ("memory without end", 6, {500, 503}),
    ("a print of 10 MB", 7, {200}),
    ("a fork that stays", 8, {200}),
    ("a thread left behind", 9, {200}),
    ("the model's own refusal", 10, {400}),
    ("a process that stops itself", 11, {503}),
    ("all files closed", 12, {503}),
    ("recursion without end", 13, {500, 503}),
    ("more rows than came", 14, {500}),
    ("no output", 15, {500}),
    ("sys.exit", 16, {500}),
)
ENDS = {3, 4, 5, 6, 11, 12, 13}
SHORT = {1, 2, 3, 4, 5, 6, 7, 8, 9}
NEIGHBOUR = """
import ripieno

@ripieno.model(inputs={"n": ripieno.i64()}, outputs={"y": ripieno.i64()})
def serve(n):
    return n * n
"""


def put(repository, name, code, more=""):
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(code)
    (repository / name / "model.toml").write_text(f'{SETTINGS}python = "{sys.executable}"\n{more}')


async def attack(bench):
    if not any(bench.wanted("P", f"{what} {model}") for what, *_ in CASES for model in ("whole", "steps")):
        return
    os.environ["PYTHONPATH"] = str(ROOT / "clients" / "python")
    with bench.repository() as repository:
        put(repository, "whole", FAULTS + WHOLE, LIMITS)
        put(repository, "steps", FAULTS + STEPS, LIMITS)
        put(repository, "beside", NEIGHBOUR)
        async with bench.server(repository) as server:
            for model in ("whole", "steps"):
                for what, code, expected in CASES:
                    if not bench.short or code in SHORT:
                        text = f"{what} in a model in Python, {'in a step' if model == 'steps' else 'whole'}"
                        await bench.row(server, "P1", text, lambda: fault(bench, server, model, code, expected))


async def fault(bench, server, model, code, expected):
    """One bad request among good ones, in the middle of them. All are answered once, and the process is back."""
    client = bench.client(server)
    await back(client, model)
    ask = lambda number: client.ask(wire.infer(model, ("code", "INT64", [1], [number])), f"python {model}")
    beside = lambda number: client.ask(wire.infer("beside", ("n", "INT64", [1], [number])), "python beside")
    numbers = [100, 101, 102, code, 103, 104, 105]
    answers, others = await asyncio.gather(
        asyncio.gather(*map(ask, numbers)), asyncio.gather(*(beside(number) for number in range(8)))
    )
    bad = answers[numbers.index(code)]
    good = [(number, answer) for number, answer in zip(numbers, answers) if number != code]
    excused = [answer.status for _, answer in good if code in ENDS and answer.status == 503]
    served = sum(is_right(model, number, answer) for number, answer in good)
    lost = [answer.status for number, answer in enumerate(others) if answer.status != 200 or answer.output("y") != [number**2]]
    was_back = await back(client, model)
    await client.close()
    leaked = b"and more of it" in bad.body
    held = bad.status in expected and served + len(excused) == len(good) and not lost and not leaked and was_back
    seen = f"the bad one: {bad.status}; {served} of {len(good)} neighbours right, {tally(excused) or 'none'} excused"
    return held, f"{seen}; beside it {len(lost)} of 8 lost; {'back' if was_back else 'not back'}"


def is_right(model, number, answer):
    last = [number, number + 1]
    return answer.status == 200 and answer.output("y") == (last if model == "whole" else [0, 1, 0, 1, *last, 0, 1])


async def back(client, model):
    """Whether a good request is answered, within the time for a process to start."""
    deadline = asyncio.get_running_loop().time() + BACK_S
    while asyncio.get_running_loop().time() < deadline:
        answer = await client.ask(wire.infer(model, ("code", "INT64", [1], [50])), f"python {model}")
        if answer.status == 200:
            return is_right(model, 50, answer)
        await asyncio.sleep(0.05)
    return False
