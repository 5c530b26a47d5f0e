#!/usr/bin/env python3
"""The answer of a sequence-to-sequence model as it grows, over HTTP (server-sent events). Python alone is enough.

    python stream_sse.py "20 Nov 2026"

Each step of the decoder is an event. What a browser or curl sees:

    curl -N localhost:8000/v2/models/dates/generate_stream -d '{"token": [49, 47, 50, 47, 57, 57]}'
"""

import argparse
import json
import urllib.error
import urllib.request

END = 3


def events(url, text):
    """The events of one request, decoded."""
    body = json.dumps({"token": list(text.encode("ascii"))}).encode()
    request = urllib.request.Request(f"http://{url}/v2/models/dates/generate_stream", body)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request) as response:
            for line in response:
                if line.startswith(b"data:"):
                    yield json.loads(line[len(b"data:") :])
    except urllib.error.HTTPError as error:
        # Refused before the first step; a later failure is an event.
        yield json.load(error)


def steps(url, text):
    """The answer's characters, each as soon as it is there."""
    for event in events(url, text):
        if "error" in event:
            raise SystemExit(event["error"])
        tokens = event.get("tokens", [])
        for code in tokens if isinstance(tokens, list) else [tokens]:
            if code != END:
                yield chr(code)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", default=["20 Nov 2026"])
    parser.add_argument("--url", default="localhost:8000", help="HTTP address, default: %(default)s")
    args = parser.parse_args()
    for text in args.texts:
        print(text, "-> ", end="")
        for character in steps(args.url, text):
            print(character, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
