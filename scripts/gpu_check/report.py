"""The rows of a run: tables on stdout, and a JSON file that is written anew after each row, so that a run that is killed leaves it."""

import json
import os
import sys
import time

# Columns that say what was measured.
WHO = ["model", "policy", "lanes", "offered", "rows"]
# Characters of the beginning and of the end of a reason that a table shows; the file has all.
BEGINNING, END = 150, 750


class Report:
    """The rows of each section, and the seconds that each had and took."""

    def __init__(self, file, about, began):
        self.file, self.about, self.began = file, about, began
        self.sections, self.times = {}, {}
        self.write()

    def begin(self, section, seconds):
        self.section, self.section_began = section, time.monotonic()
        self.sections[section], self.times[section] = [], {"had_s": round(seconds, 1), "took_s": None}
        self.write()

    def add(self, row):
        self.sections[self.section].append(row)
        self.write()

    def end(self):
        """Ends the section and prints its tables."""
        times, rows = self.times[self.section], self.sections[self.section]
        times["took_s"] = round(time.monotonic() - self.section_began, 1)
        self.write()
        print(f"\n{self.section}: had {times['had_s']:.0f} s, took {times['took_s']:.0f} s")
        # Rows of different parts have different columns.
        for part in dict.fromkeys(row.get("part", "") for row in rows):
            show(part, [row for row in rows if row.get("part", "") == part])

    def errors(self):
        return [row for rows in self.sections.values() for row in rows if row["error"]]

    def unequal(self):
        return [row for rows in self.sections.values() for row in rows if row.get("equal") is False]

    def write(self, complete=False):
        seconds = round(time.monotonic() - self.began, 1)
        whole = {
            **self.about, "complete": complete, "seconds": seconds, "errors": len(self.errors()),
            "times": self.times, "sections": self.sections,
        }  # fmt: skip
        part = self.file.with_name(self.file.name + ".part")
        part.write_text(json.dumps(whole, indent=1) + "\n")
        os.replace(part, self.file)


def cell(value):
    if isinstance(value, float):
        return f"{value:.0e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)


def show(title, rows):
    """Prints a table of the figures, and below it what is missing and why."""
    columns = list(dict.fromkeys(key for row in rows for key in row if key not in ("part", "error", "note")))
    figures = [row for row in rows if any(row.get(key) not in ("", None) for key in columns if key not in WHO)]
    columns = [key for key in columns if any(row.get(key) not in ("", None) for row in figures)]
    if title:
        print(f" {title}")
    lines = [columns] * bool(figures) + [[cell(row.get(key)) for key in columns] for row in figures]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        if why := row["error"] or row.get("note"):
            shown = why if len(why) <= BEGINNING + END else f"{why[:BEGINNING]} … {why[-END:]}"
            print(f"  {' '.join(str(row[key]) for key in WHO if row.get(key)) or '-'}: {shown}")
    sys.stdout.flush()
