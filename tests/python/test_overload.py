"""Overload, on an emulated device: three times what it can do, and goodput stays what it can do."""

import asyncio
import json
import urllib.request

import aiohttp
import numpy as np
import pytest
import tritonclient.http

import repositories
from serving import Server
from wires import Http

MAX_BATCH = 16
BATCH_MS = 40 + 5 * MAX_BATCH
PEAK_RPS = MAX_BATCH / (BATCH_MS / 1000)
OVERLOAD = 3
DURATION_S = 15
# The first moments fill the queue, the last ones empty it: the device's own rate is what lies between.
WINDOW_S = (2, 14)


def body():
    """One request, as the stock client writes it."""
    tensor = tritonclient.http.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1.0, 2.0]], np.float32))
    content, length = tritonclient.http.InferenceServerClient.generate_request_body([tensor])
    return content, {"Inference-Header-Content-Length": str(length)}


def test_goodput_holds_at_three_times_the_peak(tmp_path):
    toml = f"slo_ms = 500\nmax_batch = {MAX_BATCH}\nalpha_ms = 5\nbeta_ms = 40\n"
    repositories.emulated(tmp_path, "slow", toml)
    with Server(tmp_path, *repositories.EMULATED) as server:
        before_mib = server.resident_mib()
        answers, health = asyncio.run(overload(server))
        grown_mib = server.resident_mib() - before_mib
        assert_metrics_answer(server)
    sent = round(PEAK_RPS * OVERLOAD * DURATION_S)
    assert len(answers) == sent, "every request gets exactly one answer"
    assert {status for status, _ in answers} <= {200, 429, 503, 504}
    window_s = WINDOW_S[1] - WINDOW_S[0]
    good = sum(status == 200 and WINDOW_S[0] <= at < WINDOW_S[1] for status, at in answers)
    assert good >= 0.95 * PEAK_RPS * window_s, f"{good / window_s:.0f} of {PEAK_RPS:.0f} good answers a second"
    assert len(health) >= 5 and max(health) < 2, f"health took {max(health):.2f} s"
    assert grown_mib < 64, f"memory grew by {grown_mib:.0f} MiB"


async def overload(server):
    """Open loop: each request leaves at its own time, whatever became of those before."""
    loop = asyncio.get_running_loop()
    content, headers = body()
    url = f"http://{server.http}/v2/models/slow/infer"
    answers, health = [], []
    begun = loop.time()

    async def send(session, at):
        await asyncio.sleep(begun + at - loop.time())
        async with session.post(url, data=content, headers=headers) as reply:
            await reply.read()
            answers.append((reply.status, loop.time() - begun))

    async def watch(session):
        while loop.time() - begun < DURATION_S:
            asked = loop.time()
            async with session.get(f"http://{server.http}/v2/health/ready") as reply:
                assert reply.status == 200
            health.append(loop.time() - asked)
            await asyncio.sleep(1)

    gaps = np.random.default_rng(3).exponential(size=round(PEAK_RPS * OVERLOAD * DURATION_S))
    times = np.cumsum(gaps) * DURATION_S / gaps.sum()
    limits = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as session:
        await asyncio.gather(watch(session), *(send(session, at) for at in times))
    return answers, health


def assert_metrics_answer(server):
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=10) as reply:
        assert reply.status == 200 and b'model="slow"' in reply.read()


@pytest.mark.parametrize("requests", [12])
def test_a_full_queue_refuses_at_once(tmp_path, requests):
    toml = "slo_ms = 10000\nmax_batch = 1\nlatency_ms = [300]\nmax_queue = 3\n"
    repositories.emulated(tmp_path, "narrow", toml)

    async def send_all(url):
        content, headers = body()

        async def send(session):
            async with session.post(url, data=content, headers=headers) as reply:
                return reply.status, reply.headers.get("Retry-After"), await reply.read()

        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(send(session) for _ in range(requests)))

    with Server(tmp_path, *repositories.EMULATED) as server:
        answers = asyncio.run(send_all(f"http://{server.http}/v2/models/narrow/infer"))
        assert Http(server).client.is_server_ready()
    served = [answer for answer in answers if answer[0] == 200]
    refused = [answer for answer in answers if answer[0] == 429]
    assert len(served) + len(refused) == requests and 3 <= len(served) < requests
    for _, retry_after, content in refused:
        assert int(retry_after) >= 1 and "queue" in json.loads(content)["error"]
