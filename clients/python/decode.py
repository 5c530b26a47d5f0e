#!/usr/bin/env python3
"""Sequence to sequence, over gRPC: dates in any way of writing to ISO 8601.

    pip install tritonclient[grpc]
    python decode.py "20 Nov 2026" "the 3rd of May, 1999" 11/20/26

The answer comes whole, once the decoder has said its end mark. To see it grow: stream_grpc.py and stream_sse.py.
"""

import argparse

import numpy as np
import tritonclient.grpc as triton

END = 3


def ask(client, text):
    """A text as ASCII codes, and the answer's codes up to the end mark."""
    codes = np.array([list(text.encode("ascii"))], np.int64)
    token = triton.InferInput("token", codes.shape, "INT64")
    token.set_data_from_numpy(codes)
    tokens = client.infer("dates", [token]).as_numpy("tokens")[0].tolist()
    return bytes(tokens[: tokens.index(END)] if END in tokens else tokens).decode("ascii")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", default=["20 Nov 2026", "the 3rd of May, 1999", "11/20/26"])
    parser.add_argument("--url", default="localhost:8001", help="gRPC address, default: %(default)s")
    args = parser.parse_args()
    with triton.InferenceServerClient(args.url) as client:
        for text in args.texts:
            print(f"{text} -> {ask(client, text)}")


if __name__ == "__main__":
    main()
