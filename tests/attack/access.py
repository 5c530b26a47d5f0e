"""Section D, item 14: who may do what; and what a server tells of itself to those who may do nothing."""

import os

import tritonclient.grpc.aio as grpc_client
from tritonclient.utils import InferenceServerException

import models
import wire
from bench import tally

INFER, ADMIN, METRICS = "infer", "admin", "metrics"
# What is shown, and what it is good for; the first is no token at all.
TOKENS = {
    "": (),
    "a-token-that-nobody-gave": (),
    "the-token-that-has-expired": (),
    "the-token-for-inference": (INFER,),
    "the-token-for-administration": (ADMIN,),
    "the-token-for-the-metrics": (METRICS,),
}
PAIR = ("x", "FP32", [1, 2], [1.0, 2.0])
DESCRIBE = (INFER, ADMIN)
# Calls of HTTP and the scopes of which one is enough; none where everybody may ask.
CALLS = {
    "live": (wire.get("/v2/health/live"), ()),
    "ready": (wire.get("/v2/health/ready"), ()),
    "server": (wire.get("/v2"), DESCRIBE),
    "model": (wire.get("/v2/models/doubled"), DESCRIBE),
    "config": (wire.get("/v2/models/doubled/config"), DESCRIBE),
    "stats": (wire.get("/v2/models/stats"), DESCRIBE),
    "index": (wire.post("/v2/repository/index", b"{}"), DESCRIBE),
    "infer": (wire.infer("doubled", PAIR), (INFER,)),
    "generate": (wire.post("/v2/models/doubled/generate", b'{"x":[[1,2]]}'), (INFER,)),
    "load": (wire.post("/v2/repository/models/doubled/load", b"{}"), (ADMIN,)),
    "metrics": (wire.get("/metrics"), (METRICS,)),
}
# Those of gRPC, by the method of the stock client.
STUBS = {
    "is_server_live": ((), ()),
    "get_server_metadata": ((), DESCRIBE),
    "get_model_metadata": (("doubled",), DESCRIBE),
    "get_inference_statistics": ((), DESCRIBE),
    "get_model_repository_index": ((), DESCRIBE),
    "infer": (("doubled", []), (INFER,)),
    "load_model": (("doubled",), (ADMIN,)),
}


async def attack(bench):
    with bench.repository() as folder:
        models.put(folder, "doubled", models.doubled())
        file = folder / ".tokens"
        file.write_text(token_file())
        async with bench.server(folder, "--tokens", str(file)) as server:
            await bench.row(server, "D14", "every call of HTTP with every credential", lambda: over_http(bench, server))
            await bench.row(server, "D14", "every call of gRPC with every credential", lambda: over_grpc(bench, server))
            what = "tokens in the log, lines forged by a path"
            await bench.row(server, "D14", what, lambda: log_lines(bench, server))
        secret = folder.with_name(folder.name + "-outside.onnx")
        secret.write_bytes(models.doubled().SerializeToString())
        (folder / "stray" / "1").mkdir(parents=True)
        (folder / "stray" / "1" / "model.onnx").symlink_to(secret)
        try:
            async with bench.server(folder) as server:
                await bench.row(server, "D14", "a web page unloads a model", lambda: web_page(bench, server))
                what = "a link that leads out of the repository; paths of the machine in answers"
                await bench.row(server, "D14", what, lambda: outside(bench, server, folder))
        finally:
            secret.unlink()


def token_file():
    sections = []
    for token, scopes in list(TOKENS.items())[2:]:
        named = ", ".join(f'"{scope}"' for scope in scopes or (INFER, ADMIN, METRICS))
        expires = "2001-01-01" if "expired" in token else "9999-01-01"
        sections.append(f'[[token]]\nname = "{token[-12:]}"\ntoken = "{token}"\nscopes = [{named}]\nexpires = {expires}\n')
    return "\n".join(sections)


def allowed(need, token):
    """Whether the server must let a call pass, and else how it must refuse it."""
    if not need or set(need) & set(TOKENS[token]):
        return "passed"
    return "forbidden" if TOKENS[token] else "unknown"


async def over_http(bench, server):
    """By either header; with the wrong scheme a token is worth nothing."""
    client, wrong, count = bench.client(server), [], 0
    metrics = bench.client(server)
    metrics.address = server.metrics
    for name, (request, need) in CALLS.items():
        for token in TOKENS:
            for header in [f"Authorization: Bearer {token}", f"x-api-key: {token}"] if token else ["x-nothing: at-all"]:
                status = await (metrics if name == "metrics" else client).status(with_header(request, header), "credentials")
                seen = {401: "unknown", 403: "forbidden", 200: "passed"}.get(status, status)
                count += 1
                if seen != allowed(need, token):
                    wrong.append(f"{name} with {token!r}: {status}")
        if need:
            basic = with_header(request, "Authorization: Basic the-token-for-inference")
            status = await (metrics if name == "metrics" else client).status(basic, "credentials")
            count += 1
            wrong += [f"{name} with another scheme: {status}"] * (status != 401)
    await client.close()
    await metrics.close()
    return not wrong, f"{count - len(wrong)} of {count} as they should be" + "".join(f"; {text}" for text in wrong[:5])


def with_header(request, header):
    head, rest = request.split(b"\r\n", 1)
    return head + b"\r\n" + header.encode() + b"\r\n" + rest


async def over_grpc(bench, server):
    wrong, count = [], 0
    client = grpc_client.InferenceServerClient(server.grpc)
    codes = {"StatusCode.UNAUTHENTICATED": "unknown", "StatusCode.PERMISSION_DENIED": "forbidden"}
    for name, (arguments, need) in STUBS.items():
        for token in TOKENS:
            headers = {"authorization": f"Bearer {token}"} if token else None
            bench.ledger.sent += 1
            try:
                await getattr(client, name)(*arguments, headers=headers)
                seen = "passed"
            except InferenceServerException as error:
                # An inference without inputs that gets as far as being looked at has passed the door.
                seen = codes.get(error.status(), "passed" if error.status() == "StatusCode.INVALID_ARGUMENT" else error.status())
            bench.ledger.answered += 1
            count += 1
            if seen != allowed(need, token):
                wrong.append(f"{name} with {token!r}: {seen}")
    await client.close()
    return not wrong, f"{count - len(wrong)} of {count} as they should be" + "".join(f"; {text}" for text in wrong[:5])


async def log_lines(bench, server):
    """What came is quoted in lines of the log; it must stay in its line, and tokens must not be in any."""
    client = bench.client(server)
    forged = wire.get("/v2/models/x%0a2026-01-01T00:00:00Z%20ERROR%20forged%0d%1b%5b31m/ready")
    for token in list(TOKENS)[1:]:
        await client.status(with_header(forged, f"Authorization: Bearer {token}"), "credentials")
    await client.close()
    log = os.pread(server.log.fileno(), 1 << 20, 0).decode(errors="replace")
    told = [token for token in list(TOKENS)[1:] if token in log]
    broken = [line for line in log.splitlines() if "ERROR forged" in line and line.startswith("2026-01-01")]
    clean = not any(mark in log.replace("\n", "") for mark in "\r\x1b")
    return not told and not broken and clean, f"{len(told)} tokens and {len(broken)} forged lines in {len(log)} bytes of log"


async def web_page(bench, server):
    """As a browser would send it: with the page's origin, or under a name that the page's owner has pointed here."""
    client, statuses = bench.client(server), []
    unload = wire.post("/v2/repository/models/doubled/unload", b"{}")
    statuses.append(await client.status(with_header(unload, "Origin: https://evil.example"), "web page"))
    statuses.append(await client.status(with_header(unload, "Origin: null"), "web page"))
    statuses.append(await client.status(unload.replace(b"Host: localhost", b"Host: evil.example"), "web page"))
    served = await client.status(wire.infer("doubled", PAIR), "web page")
    await client.close()
    return set(statuses) == {403} and served == 200, f"{tally(statuses)}; the model afterwards: {served}"


async def outside(bench, server, folder):
    client = bench.client(server)
    answers = [await client.ask(wire.post("/v2/repository/index", b"{}"), "outside")]
    answers.append(await client.ask(wire.post("/v2/repository/models/stray/load", b"{}"), "outside"))
    answers.append(await client.ask(wire.get("/v2/models/stray"), "outside"))
    served = await client.status(wire.infer("stray", PAIR), "outside")
    await client.close()
    told = [answer.status for answer in answers if str(folder.parent).encode() + b"/" in answer.body]
    return served != 200 and not told, f"infer: {served}; {len(told)} of {len(answers)} answers name a path of the machine"
