"""Generated dates: one day in one of many ways to write it, and the same day as ISO 8601 has it.

A date with slashes has the month first (11/20/2026), one with dots the day (20.11.2026). A year of two digits lies
between 1950 and 2049, as all days do here. Days are split, not texts: a held-out day was seen in no way of writing.
"""

import datetime
import random

import numpy as np

FIRST = datetime.date(1950, 1, 1)
LAST = datetime.date(2049, 12, 31)
HELD_OUT = 0.1
SPLIT_SEED = 40

MONTHS = "January February March April May June July August September October November December".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

PATTERNS = [
    "{Month} {d}, {yyyy}",
    "{d} {Month} {yyyy}",
    "{Month} {th}, {yyyy}",
    "{th} of {Month} {yyyy}",
    "the {th} of {Month}, {yyyy}",
    "{Mon} {d}, {yyyy}",
    "{d} {Mon} {yyyy}",
    "{Mon}. {th} {yyyy}",
    "{yyyy} {Mon} {dd}",
    "{Weekday}, {Month} {d}, {yyyy}",
    "{Weekday} {th} {Month} {yyyy}",
    "{Wkd} {d} {Mon} {yyyy}",
    "{Wkd} {Mon} {d} {yyyy}",
    "{mm}/{dd}/{yyyy}",
    "{m}/{d}/{yyyy}",
    "{m}/{d}/{yy}",
    "{dd}.{mm}.{yyyy}",
    "{d}.{m}.{yyyy}",
    "{d}.{m}.{yy}",
    "{yyyy}/{mm}/{dd}",
    "{yyyy}-{m}-{d}",
    "{yyyy}{mm}{dd}",
    "{dd}-{Mon}-{yyyy}",
    "{dd}-{Mon}-{yy}",
    "{d} {Mon} '{yy}",
]


def ordinal(day):
    teen = 10 < day < 20
    return f"{day}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


def write(date, pattern):
    """The day in one of the patterns. English names, whatever the locale."""
    month, weekday = MONTHS[date.month - 1], WEEKDAYS[date.weekday()]
    return pattern.format(
        d=date.day, dd=f"{date.day:02}", th=ordinal(date.day), m=date.month, mm=f"{date.month:02}",
        Month=month, Mon=month[:3], Weekday=weekday, Wkd=weekday[:3],
        yyyy=date.year, yy=f"{date.year % 100:02}",
    )  # fmt: skip


def split():
    """(days to train on, held-out days)"""
    days = [FIRST + datetime.timedelta(n) for n in range((LAST - FIRST).days + 1)]
    order = np.random.default_rng(SPLIT_SEED).permutation(len(days))
    held = int(len(days) * HELD_OUT)
    return [days[i] for i in order[held:]], [days[i] for i in order[:held]]


def examples(days, count, seed):
    """`count` pairs (text, ISO date)."""
    chance = random.Random(seed)
    return [example(chance.choice(days), chance) for _ in range(count)]


def example(date, chance):
    text = write(date, chance.choice(PATTERNS))
    case = chance.random()
    if case < 0.15:
        text = text.lower()
    elif case < 0.3:
        text = text.upper()
    return text, date.isoformat()
