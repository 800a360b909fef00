"""Families of the highest level: state, nested structure, or a small algorithm."""

from functools import partial

from recipe.mini_apps.draws import lines, numbers, word, words
from recipe.mini_apps.family import Family

call = partial(Family, level="hard", kind="call")
stdin = partial(Family, level="hard", kind="stdin")

FAMILIES = (
    call(
        name="bounded_counter",
        question="A counter starts at 0. Write a function `count(moves)` that adds the moves one after the "
        "other; whenever the counter leaves the range 0 to $c it is set back to 0. Return the "
        "counter's last value.",
        solution="def count(moves):\n    value = 0\n    for move in moves:\n        value += move\n"
        "        if not 0 <= value <= $c:\n            value = 0\n    return value\n",
        values={"c": range(10, 22)},
        draw=lambda rng, p: [numbers(rng, -4, 8, 4, 12)],
    ),
    call(
        name="longest_run",
        question="Write a function `run(numbers)` that returns the length of the longest run of "
        "neighbouring numbers in which each differs from the one before it by at most $c. An empty "
        "list has length 0.",
        solution="def run(numbers):\n    best = length = 0\n    for i, n in enumerate(numbers):\n"
        "        length = length + 1 if i and abs(n - numbers[i - 1]) <= $c else 1\n"
        "        best = max(best, length)\n    return best\n",
        values={"c": range(2, 14)},
        draw=lambda rng, p: [numbers(rng, 0, 25, 0, 14)],
    ),
    call(
        name="two_numbers",
        question="Write a function `pairs(numbers)` that returns how many pairs of different positions hold numbers "
        "with a sum of $c.",
        solution="def pairs(numbers):\n    seen, count = {}, 0\n    for n in numbers:\n"
        "        count += seen.get($c - n, 0)\n        seen[n] = seen.get(n, 0) + 1\n"
        "    return count\n",
        values={"c": range(5, 17)},
        draw=lambda rng, p: [numbers(rng, 0, p["c"], 4, 14)],
    ),
    call(
        name="caesar",
        question="Write a function `shift(text)` that replaces every lower-case letter by the one $n places "
        "later in the alphabet (after z comes a) and leaves everything else as it is.",
        solution="def shift(text):\n    moved = ''\n    for ch in text:\n"
        "        moved += chr((ord(ch) - 97 + $n) % 26 + 97) if 'a' <= ch <= 'z' else ch\n    return moved\n",
        values={"n": range(2, 25)},
        draw=lambda rng, p: [" ".join(words(rng, 1, 3)).title() + "!"],
    ),
    call(
        name="to_base",
        question="Write a function `digits(n)` that returns the digits of n in base $b as a list, the most "
        "significant first. digits(0) is [0].",
        solution="def digits(n):\n    found = [n % $b]\n    while n >= $b:\n        n //= $b\n"
        "        found.append(n % $b)\n    return found[::-1]\n",
        values={"b": (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16)},
        draw=lambda rng, p: [rng.choice((0, p["b"], rng.randint(1, 5000)))],
    ),
    call(
        name="group_words",
        question="Write a function `lines(words)` that joins words by single blanks into lines of at most "
        "$n characters, each line taking as many words as fit, in order, and returns the list of "
        "lines. No word is longer than a line.",
        solution="def lines(words):\n    done = []\n    for w in words:\n"
        "        if done and len(done[-1]) + 1 + len(w) <= $n:\n            done[-1] += ' ' + w\n"
        "        else:\n            done.append(w)\n    return done\n",
        values={"n": range(8, 26)},
        draw=lambda rng, p: [words(rng, 2, 9)],
    ),
    call(
        name="climb",
        question="A stair has n steps; you climb 1 or $k steps at a time. Write a function `ways(n)` that "
        "returns in how many ways you can climb exactly n steps. ways(0) is 1.",
        solution="def ways(n):\n    counts = [1]\n    for i in range(1, n + 1):\n"
        "        counts.append(counts[i - 1] + (counts[i - $k] if i >= $k else 0))\n    return counts[n]\n",
        values={"k": range(2, 14)},
        draw=lambda rng, p: [rng.randint(0, 40)],
    ),
    call(
        name="brackets",
        question="Write a function `balanced(text)` that returns True if every ( is closed by a ) after it, "
        "no ) comes without an open (, and they are never nested more than $n deep; else False. "
        "Other characters do not matter.",
        solution="def balanced(text):\n    depth = 0\n    for ch in text:\n        depth += (ch == '(') - (ch == ')')\n"
        "        if not 0 <= depth <= $n:\n            return False\n    return depth == 0\n",
        values={"n": range(1, 13)},
        draw=lambda rng, p: [
            "x".join(
                "(" * d + ")" * (d - rng.choice((0, 0, 0, 1))) for d in (rng.randint(0, p["n"] + 1), 1, min(2, p["n"]))
            )
        ],
    ),
    call(
        name="merge_intervals",
        question="Write a function `merge(intervals)`: each interval is [start, end]. Intervals whose gap "
        "is at most $c become one. Return the merged intervals sorted by start.",
        solution="def merge(intervals):\n    merged = []\n    for start, end in sorted(intervals):\n"
        "        if merged and start - merged[-1][1] <= $c:\n            merged[-1][1] = max(merged[-1][1], end)\n"
        "        else:\n            merged.append([start, end])\n    return merged\n",
        values={"c": range(0, 12)},
        draw=lambda rng, p: [[[s, s + rng.randint(0, 9)] for s in numbers(rng, 0, 90, 2, 7)]],
    ),
    call(
        name="matrix_sum",
        question="Write a function `ring(matrix)` that returns the sum of all numbers of the square matrix "
        "(a list of rows) whose row index plus column index (both from 0) is at least $c.",
        solution="def ring(matrix):\n"
        "    return sum(v for i, row in enumerate(matrix) for j, v in enumerate(row) if i + j >= $c)\n",
        values={"c": range(1, 13)},
        draw=lambda rng, p: [[[rng.randint(0, 9) for _ in range(7)] for _ in range(7)]],
    ),
    stdin(
        name="read_queries",
        question="A stock starts at $c pieces. The first line holds n, then n lines follow, each `buy k` (adds k) or "
        "`sell k` (takes k, but is ignored if fewer than k are left). Print the stock after every line.",
        solution="stock = $c\nfor _ in range(int(input())):\n    action, k = input().split()\n    k = int(k)\n"
        "    if action == 'buy':\n        stock += k\n    elif stock >= k:\n        stock -= k\n    print(stock)\n",
        values={"c": range(0, 24, 2)},
        draw=lambda rng, p: (
            lambda n: lines(n, *[f"{rng.choice(('buy', 'sell'))} {rng.randint(1, 15)}" for _ in range(n)])
        )(rng.randint(2, 8)),
    ),
    stdin(
        name="read_grid",
        question="The first line holds the number of rows; each row is a line of the characters . and #. "
        "Print the number of columns with at least $n #.",
        solution="rows = [input() for _ in range(int(input()))]\n"
        "print(sum(1 for column in zip(*rows) if column.count('#') >= $n))\n",
        values={"n": range(1, 13)},
        draw=lambda rng, p: (
            lambda rows: lines(rows, *["".join(rng.choice(".##") for _ in range(9)) for _ in range(rows)])
        )(p["n"] + rng.randint(0, 3)),
    ),
    stdin(
        name="read_table",
        question="Every line holds a name and a number, until the end of the input. Print the names whose "
        'numbers sum to at least $c in alphabetical order, one per line, or "none".',
        solution="import sys\nsums = {}\nfor line in sys.stdin:\n    name, value = line.split()\n"
        "    sums[name] = sums.get(name, 0) + int(value)\n"
        "print('\\n'.join(sorted(n for n in sums if sums[n] >= $c)) or 'none')\n",
        values={"c": range(10, 34, 2)},
        draw=lambda rng, p: lines(
            *[f"{rng.choice(('ann', 'bob', 'cy'))} {rng.randint(1, 15)}" for _ in range(rng.randint(2, 7))]
        ),
    ),
    call(
        name="run_length",
        split="val",
        question="Write a function `pack(text)` that replaces every run of $n or more equal letters by the "
        'run\'s length and the letter (20 letters "a" become "20a"); shorter runs stay.',
        solution="def pack(text):\n    from itertools import groupby\n\n    packed = ''\n"
        "    for letter, group in groupby(text):\n        size = len(list(group))\n"
        "        packed += f'{size}{letter}' if size >= $n else letter * size\n    return packed\n",
        values={"n": range(2, 14)},
        draw=lambda rng, p: ["".join(ch * rng.choice((1, 2, p["n"], p["n"] + 1)) for ch in word(rng)[:3])],
    ),
    call(
        name="collatz",
        split="val",
        question="Start from n; halve an even number, and replace an odd number x by 3x + $c, until the number is "
        "at most $m or 50 steps are done. "
        "Write a function `walk(n)` that returns the number of steps.",
        solution="def walk(n):\n    steps = 0\n    while n > $m and steps < 50:\n"
        "        n = n // 2 if n % 2 == 0 else 3 * n + $c\n        steps += 1\n    return steps\n",
        values={"c": (1, 3, 5, 7), "m": (4, 9, 20)},
        draw=lambda rng, p: [rng.randint(1, 300)],
    ),
    stdin(
        name="read_rounds",
        split="val",
        question="n players stand in a circle, numbered from 1. Starting the count at player 1, every "
        "${k}th player leaves until one is left. Read n and print the number of the last player.",
        solution="n = int(input())\nlast = 0\nfor size in range(2, n + 1):\n    last = (last + $k) % size\n"
        "print(last + 1)\n",
        values={"k": range(4, 16)},
        draw=lambda rng, p: lines(rng.randint(1, 60)),
    ),
)
