"""Generated arithmetic: trees of digits under +, - and *, all of it modulo 10.

A tree is a digit, or (operator, left, right). Texts whose checksum ends in 0 are held out, a tenth of them: what is
held out is the whole expression; its small parts, such as (3+4), were of course seen.
"""

import random
import zlib

OPERATORS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
SMALLEST_HELD = 4


def text(tree):
    """With brackets around all but a digit."""
    if isinstance(tree, int):
        return str(tree)
    operator, left, right = tree
    return f"({text(left)}{operator}{text(right)})"


def value(tree):
    if isinstance(tree, int):
        return tree
    operator, left, right = tree
    return OPERATORS[operator](value(left), value(right)) % 10


def children(tree):
    return () if isinstance(tree, int) else tree[1:]


def token(tree):
    """What the model gets of a node: the ASCII code of its digit or operator."""
    return ord(str(tree) if isinstance(tree, int) else tree[0])


def tree(leaves, chance):
    """One with so many digits, its shape by chance."""
    if leaves == 1:
        return chance.randrange(10)
    left = chance.randrange(1, leaves)
    return (chance.choice("+-*"), tree(left, chance), tree(leaves - left, chance))


def held_out(example, leaves):
    return leaves >= SMALLEST_HELD and zlib.crc32(text(example).encode()) % 10 == 0


def examples(count, seed, fewest, most, held):
    """`count` trees of `fewest` to `most` digits, held-out ones or others."""
    chance, found = random.Random(seed), []
    while len(found) < count:
        leaves = chance.randint(fewest, most)
        example = tree(leaves, chance)
        if held_out(example, leaves) == held:
            found.append(example)
    return found
