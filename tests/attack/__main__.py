"""Attacks a server as a stock client would, and says what held: `cargo xtask attack`.

Every attack is one row: what was tried, what was seen, held or not. It is judged by what a client sees, never by what happens
inside, so that a server mended in another way passes as well. The exit code is 1 if anything did not hold.
"""

import argparse
import asyncio
import os
import pathlib
import resource
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import access  # noqa: E402
import bench as benches  # noqa: E402
import bounds  # noqa: E402
import endings  # noqa: E402
import isolation  # noqa: E402
import odd_requests  # noqa: E402
import python_code  # noqa: E402
import report  # noqa: E402
import sharing  # noqa: E402

SECTIONS = {"A": isolation, "B": sharing, "C": bounds, "D": access, "E": endings, "O": odd_requests, "P": python_code}


def main():
    arguments = parse()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    bench = benches.Bench(pathlib.Path(arguments.binary), arguments.short, arguments.only)
    asyncio.run(run(bench, arguments.sections))
    if not bench.only:
        bench.rows.append(bench.ledger.row())
    print(report.as_json(bench.rows, bench.ledger) if arguments.format == "json" else report.table(bench.rows))
    sys.exit(0 if bench.rows and all(row.held for row in bench.rows) else 1)


async def run(bench, sections):
    for name in sections:
        await SECTIONS[name].attack(bench)


def sections(text):
    """Letters of sections; anything else is said to be wrong."""
    unknown = set(text) - set(SECTIONS)
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no section {min(unknown)!r}; they are {', '.join(SECTIONS)}")
    return text


def parse():
    parser = argparse.ArgumentParser(prog="cargo xtask attack", description="Attacks a server and says what held.")
    target = os.environ.get("RIPIENO_TARGET", ROOT / "target")
    parser.add_argument("--binary", default=pathlib.Path(target) / "release" / "ripieno", help="the server")
    parser.add_argument("--short", action="store_true", help="the quick form of each attack, without those that the clock judges")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--sections", default="ABCDEOP", type=sections, help="which: A isolation, B sharing, C bounds, D access, E endings, O odd requests, P code of models in Python")
    parser.add_argument("only", nargs="*", help="only attacks whose item or text has one of these words")
    return parser.parse_args()


if __name__ == "__main__":
    main()
