"""Runs attacks one after the other, each bounded in time, against servers that must survive them."""

import asyncio
import contextlib
import pathlib
import sys
import tempfile
import time

import wire
from report import Ledger, Row
from target import Target

LONGEST_ATTACK_S = 60


class Bench:
    """Where attacks leave what they found. `short` asks for the quick form of each, `only` for those whose item or text has it."""

    def __init__(self, binary, short, only):
        self.binary, self.short, self.only = binary, short, only
        self.rows, self.ledger = [], Ledger()

    @contextlib.contextmanager
    def repository(self):
        """An empty model repository."""
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            yield pathlib.Path(folder)

    def server(self, repository, *flags):
        """A server under attack, of the built-in engine unless another is named."""
        engine = () if "--engine" in flags else ("--engine", "cpu")
        return Target(self.binary, repository, *engine, *flags)

    def client(self, server, **options):
        """A well-behaved client of it."""
        return wire.Client(server.http, self.ledger, **options)

    def wanted(self, item, what):
        """Whether the user asked for this one."""
        return not self.only or any(word in f"{item} {what}" for word in self.only)

    async def row(self, server, item, what, attack, limit=LONGEST_ATTACK_S, tries=1):
        """Runs one attack; a dead server, an exception or the end of the time is a broken promise, whatever else was seen.

        What depends on the clock gets another try: a loaded machine may spoil one, a broken server spoils all.
        """
        if not self.wanted(item, what):
            return
        for attempt in range(1, tries + 1):
            begun = time.monotonic()
            held, seen = await self._attempt(server, attack, limit)
            if held or attempt == tries:
                break
        row = Row(item, what, seen, held, time.monotonic() - begun)
        print(f"{row.item:<5} {row.what}: {'held' if row.held else 'BROKE'} ({row.seen})", file=sys.stderr, flush=True)
        self.rows.append(row)

    async def _attempt(self, server, attack, limit):
        try:
            await server.revive()
            held, seen = await asyncio.wait_for(attack(), limit)
        except TimeoutError:
            held, seen = False, f"not done after {limit} s"
        except Exception as error:  # Whatever goes wrong in an attack is a finding, and the others must run.
            held, seen = False, f"{type(error).__name__}: {error}"
        if not server.alive:
            held, seen = False, f"{seen}; {server.obituary()}"
        return held, seen


async def is_served(client, model):
    """Whether a model can be asked, and if not, why: refused at load is an answer, too."""
    answer = await client.ask(wire.get(f"/v2/models/{model}/ready"), "ready")
    if answer.status == 200:
        return True, ""
    index = await client.ask(wire.post("/v2/repository/index", b"{}"), "index")
    reason = next((row.get("reason", "") for row in index.json() if row["name"] == model), "not listed")
    return False, reason


def tally(statuses):
    """How often each status came, for people."""
    counts = {}
    for status in statuses:
        counts[status] = counts.get(status, 0) + 1
    return ", ".join(f"{count} x {status or 'no answer'}" for status, count in sorted(counts.items()))
