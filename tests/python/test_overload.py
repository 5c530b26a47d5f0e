"""Overload, on an emulated device: what runs is answered in time, in batches as full as they can be.

That goodput stays what the device can do is measured in virtual time, under every policy (crates/sim/tests/suite/overload.rs).
"""

import asyncio
import json

import aiohttp
import numpy as np
import pytest
import tritonclient.http

import repositories
from serving import Server, counted
from wires import Http

# A batch takes so long that a machine which stands still for a while delays a batch, and empties none.
SLO_MS = 2000
ALPHA_MS, BETA_MS, MAX_BATCH = 20, 160, 16
BATCH_MS = ALPHA_MS * MAX_BATCH + BETA_MS
PEAK_RPS = MAX_BATCH / (BATCH_MS / 1000)
OVERLOAD = 3
DURATION_S = 15
EXECUTED, BATCHES = "ripieno_executed_rows_total", "ripieno_batch_rows_count"


def body():
    """One request, as the stock client writes it."""
    tensor = tritonclient.http.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1.0, 2.0]], np.float32))
    content, length = tritonclient.http.InferenceServerClient.generate_request_body([tensor])
    return content, {"Inference-Header-Content-Length": str(length)}


def test_nothing_is_wasted_at_three_times_the_peak(tmp_path):
    toml = f"slo_ms = {SLO_MS}\nmax_batch = {MAX_BATCH}\nalpha_ms = {ALPHA_MS}\nbeta_ms = {BETA_MS}\n"
    repositories.emulated(tmp_path, "slow", toml)
    with Server(tmp_path, *repositories.EMULATED) as server:
        before_mib = server.resident_mib()
        answers, health = asyncio.run(overload(server))
        grown_mib = server.resident_mib() - before_mib
        metrics = server.scrape()
    sent = round(PEAK_RPS * OVERLOAD * DURATION_S)
    assert len(answers) == sent, "every request gets exactly one answer"
    assert set(answers) <= {200, 429, 503, 504}
    good, run, batches = answers.count(200), *(counted(metrics, series) for series in (EXECUTED, BATCHES))
    # No clock: a machine that stands still loses time, and each time a batch at most, whatever the server does.
    assert good >= 0.9 * run, f"{good} of {run} rows that ran were answered in time"
    # The first batch is of the first request alone, the last of those who are left.
    assert run >= 0.95 * MAX_BATCH * (batches - 2), f"{run} rows in {batches} batches"
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
            answers.append(reply.status)

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
