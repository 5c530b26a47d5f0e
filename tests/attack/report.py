"""What the attacks found: a row for each, the ledger of requests and answers, and the two ways to print them."""

import dataclasses
import json
import textwrap

WIDTH = 100
SEEN_WIDTH = 60


@dataclasses.dataclass(frozen=True)
class Row:
    """One attack: the item of the promise, what was tried, what was seen, and whether the server held."""

    item: str
    what: str
    seen: str
    held: bool
    seconds: float


@dataclasses.dataclass
class Ledger:
    """Counts requests whose client waits for the answer. A client that leaves, or never finishes its request, is owed none."""

    sent: int = 0
    answered: int = 0
    surplus: int = 0
    lost: dict = dataclasses.field(default_factory=dict)

    def miss(self, where, why):
        """A request that got no answer."""
        self.lost[where, why] = self.lost.get((where, why), 0) + 1

    def row(self):
        """The last row: all of them together."""
        missing = self.sent - self.answered
        seen = f"{self.sent} requests, {self.answered} answers, {self.surplus} answers too many"
        if self.lost:
            seen += "; without: " + "; ".join(f"{count} in {where} ({why})" for (where, why), count in self.lost.items())
        held = missing == 0 and self.surplus == 0 and self.sent > 0
        return Row("all", "every request gets exactly one answer", seen, held, 0.0)


def table(rows):
    """For people: what was seen is wrapped, so that the columns stay together."""
    lines = []
    for row in rows:
        mark = "held" if row.held else "BROKE"
        what, seen = textwrap.wrap(row.what, 44) or [""], textwrap.wrap(row.seen, SEEN_WIDTH) or [""]
        height = max(len(what), len(seen))
        what += [""] * (height - len(what))
        seen += [""] * (height - len(seen))
        for at in range(height):
            item, held, took = (row.item, mark, f"{row.seconds:5.1f} s") if at == 0 else ("", "", "")
            lines.append(f"{item:<5} {what[at]:<45} {seen[at]:<{SEEN_WIDTH}} {held:<6}{took}".rstrip())
    broke = sum(not row.held for row in rows)
    lines.append(f"\n{len(rows) - broke} of {len(rows)} attacks held")
    return "\n".join(lines)


def as_json(rows, ledger):
    """For programs: one object."""
    body = {
        "attacks": [dataclasses.asdict(row) for row in rows],
        "requests": ledger.sent,
        "answers": ledger.answered,
        "surplus_answers": ledger.surplus,
        "held": all(row.held for row in rows),
    }
    return json.dumps(body, indent=1)
