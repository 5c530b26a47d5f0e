#!/usr/bin/env python3
"""Sequences of any length to a recurrent model, over HTTP: favourable or not?

    pip install tritonclient[http]
    python sequence.py "the soup was not very good, but the staff was charming"

One request is one sequence. Requests of different lengths need no padding: the server runs them cell by cell,
together with whatever else is there, and answers each as soon as its own last cell has run.
"""

import argparse

import numpy as np
import tritonclient.http as triton

VERDICTS = ("negative", "positive")


def start(client, text):
    """Sends a text, as ASCII codes, and does not wait for the answer."""
    codes = np.array([list(text.encode("ascii"))], np.int64)
    token = triton.InferInput("token", codes.shape, "INT64")
    token.set_data_from_numpy(codes)
    return client.async_infer("sentiment", [token])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", default=["the soup was not very good, but the staff was charming"])
    parser.add_argument("--url", default="localhost:8000", help="HTTP address, default: %(default)s")
    args = parser.parse_args()
    with triton.InferenceServerClient(args.url, concurrency=16) as client:
        # All at once, so that the server has something to batch.
        for text, pending in [(text, start(client, text)) for text in args.texts]:
            answer = pending.get_result()
            verdict = int(answer.as_numpy("verdict")[0])
            print(f"{text} -> {VERDICTS[verdict]} ({answer.as_numpy('probabilities')[0, verdict]:.1%})")


if __name__ == "__main__":
    main()
