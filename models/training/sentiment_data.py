"""Generated reviews: short sentences whose verdict follows from rules that a reader can apply.

A clause says that something was good or bad. "not", "never" and "hardly" turn its word around; "very" and its like
change nothing. Of two clauses the one that the sentence insists on decides: the one after "but", the one that is not
behind "although". Two clauses with "and" agree. Half of the reviews are favourable. A tenth of all texts is held out,
those whose checksum ends in 0.
"""

import random
import zlib

THINGS = (
    "food soup bread coffee service staff waiter music room bed view garden price film plot acting ending "
    "book story cover battery screen keyboard camera ticket train seat journey host concert lecture"
).split()
GOOD = (
    "good great lovely excellent wonderful superb delightful charming splendid brilliant pleasant perfect "
    "fantastic fine amazing enjoyable impressive marvellous nice remarkable"
).split()
BAD = (
    "bad poor awful terrible horrible dreadful dull boring disappointing miserable dismal unpleasant useless "
    "tedious annoying mediocre shabby hopeless nasty lousy"
).split()
NEGATIONS = ["not", "never", "hardly"]
DEGREES = ["", "", "", "very ", "really ", "so ", "truly ", "quite "]
NEGATED_DEGREES = ["", "", "very ", "really "]
VERBS = ["was", "was", "seemed", "felt"]
VERDICTS = ["negative", "positive"]


def clause(favourable, chance):
    negated = chance.random() < 0.35
    word = chance.choice(GOOD if favourable != negated else BAD)
    turn = f"{chance.choice(NEGATIONS)} " if negated else ""
    degree = chance.choice(NEGATED_DEGREES if negated else DEGREES)
    return f"the {chance.choice(THINGS)} {chance.choice(VERBS)} {turn}{degree}{word}"


def review(chance):
    """(text, 1 if favourable)"""
    verdict = chance.randrange(2)
    main, other = clause(verdict, chance), clause(1 - verdict, chance)
    kind = chance.random()
    if kind < 0.4:
        text = main
    elif kind < 0.55:
        text = f"{main} and {clause(verdict, chance)}"
    elif kind < 0.75:
        text = f"{other}, but {main}"
    elif kind < 0.9:
        text = f"although {other}, {main}"
    else:
        text = f"{main}, although {other}"
    return text + chance.choice(["", ".", "!"]), verdict


def held_out(text):
    return zlib.crc32(text.encode()) % 10 == 0


def examples(count, seed, held):
    """`count` reviews, held-out ones or others."""
    chance, found = random.Random(seed), []
    while len(found) < count:
        text, verdict = review(chance)
        if held_out(text) == held:
            found.append((text, verdict))
    return found
