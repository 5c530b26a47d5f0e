#!/usr/bin/env python3
"""The answer of a sequence-to-sequence model as it grows, over gRPC (ModelStreamInfer).

    pip install tritonclient[grpc]
    python stream_grpc.py "20 Nov 2026"

Each step of the decoder is a response of its own. The last one says so in its parameters.
"""

import argparse
import queue

import numpy as np
import tritonclient.grpc as triton

END = 3


def steps(client, text):
    """The answer's characters, each as soon as it is there."""
    codes = np.array([list(text.encode("ascii"))], np.int64)
    token = triton.InferInput("token", codes.shape, "INT64")
    token.set_data_from_numpy(codes)
    arrived = queue.Queue()
    client.start_stream(callback=lambda result, error: arrived.put((result, error)))
    try:
        client.async_stream_infer("dates", [token], enable_empty_final_response=True)
        final = False
        while not final:
            result, error = arrived.get()
            if error:
                raise SystemExit(str(error))
            final = result.get_response().parameters["triton_final_response"].bool_param
            tokens = result.as_numpy("tokens")
            for code in [] if tokens is None else tokens.reshape(-1).tolist():
                if code != END:
                    yield chr(code)
    finally:
        client.stop_stream()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", default=["20 Nov 2026"])
    parser.add_argument("--url", default="localhost:8001", help="gRPC address, default: %(default)s")
    args = parser.parse_args()
    with triton.InferenceServerClient(args.url) as client:
        for text in args.texts:
            print(text, "-> ", end="")
            for character in steps(client, text):
                print(character, end="", flush=True)
            print()


if __name__ == "__main__":
    main()
