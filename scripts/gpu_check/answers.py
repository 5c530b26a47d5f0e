"""Requests to a server and the differences of their answers, in plain Python: cells are checked without NumPy.

A request is a list of inputs as the protocol has them: name, datatype, shape and data.
"""

import http.client
import json
import math
import threading
import urllib.request

# The largest difference of FP32 answers, relative to an output's largest number, that counts as
# equal.
EQUAL = 5e-3
REQUEST_S = 60.0
FAULTS = (OSError, ValueError, KeyError, http.client.HTTPException)


def infer(check, server, name, inputs):
    """The outputs of a request by name: datatype, shape, numbers."""
    data = json.dumps({"inputs": inputs}).encode()
    post = urllib.request.Request(f"http://{server.http}/v2/models/{name}/infer", data=data)
    try:
        with urllib.request.urlopen(post, timeout=min(REQUEST_S, check.allowed())) as reply:
            outputs = json.load(reply)["outputs"]
    except urllib.error.HTTPError as error:
        raise OSError(f"{error} {error.read().decode(errors='replace')}") from None
    return {output["name"]: (output["datatype"], output["shape"], output["data"]) for output in outputs}


def answers(check, server, name, requests):
    """The answers one after the other, and all at the same time."""
    alone = [infer(check, server, name, inputs) for inputs in requests]
    together = [None] * len(requests)

    def client(at):
        try:
            together[at] = infer(check, server, name, requests[at])
        except FAULTS:
            together[at] = {}

    threads = [threading.Thread(target=client, args=(at,)) for at in range(len(requests))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return alone, together


def ask(check, server, name, requests, errors):
    """The answers of a model, or the reason for which it has none."""
    if why := errors.get(name) or check.missing(5):
        return why
    try:
        return answers(check, server, name, requests)
    except FAULTS as error:
        return str(error)


def refused(server):
    """The models that a server does not serve, each with the reason."""
    return {report["name"]: report["error"] for report in server.ready["models"] if report["error"]}


def difference(expected, found):
    """The largest difference of two answers: of floats relative to the largest number, of others the share that differs."""
    most = 0.0
    for name, (datatype, shape, numbers) in expected.items():
        other_datatype, other_shape, others = found.get(name, (None, None, None))
        if (datatype, shape) != (other_datatype, other_shape) or len(numbers) != len(others):
            return math.inf
        pairs = list(zip(numbers, others, strict=True))
        if "FP" in datatype:
            if not all(isinstance(number, (int, float)) and math.isfinite(number) for pair in pairs for number in pair):
                return math.inf
            gap = max((abs(a - b) for a, b in pairs), default=0.0)
            most = max(most, gap / max([1e-6, *map(abs, numbers)]))
        else:
            most = max(most, sum(a != b for a, b in pairs) / max(1, len(pairs)))
    return most


def compared(name, expected, found, cpu_nodes):
    """The row of a model: of both sides, the answers or the reason for which there are none."""
    row = {"model": name, "cpu_nodes": cpu_nodes, "alone": None, "together": None, "equal": False, "error": ""}
    for side in (expected, found):
        if isinstance(side, str):
            return {**row, "error": side}
    (reference, _), (alone, together) = expected, found
    most = [max(map(difference, reference, side)) for side in (alone, together)]
    if not all(map(math.isfinite, most)):
        return {**row, "error": "an answer is missing, is no number or has another shape"}
    return {**row, "alone": most[0], "together": most[1], "equal": max(most) <= EQUAL}
