"""Families of the higher level: a loop, a condition or two, or a comprehension."""

from functools import partial

from experiments.mini_apps.draws import lines, natural, numbers, sentence, word, words
from experiments.mini_apps.family import Family

call = partial(Family, level="medium", kind="call")
stdin = partial(Family, level="medium", kind="stdin")

FAMILIES = (
    call(
        name="sum_divisible",
        question="Write a function `sum_divisible(numbers)` that returns the sum of those numbers divisible by $c.",
        solution="def sum_divisible(numbers):\n    return sum(n for n in numbers if n % $c == 0)\n",
        values={"c": range(2, 14)},
        draw=lambda rng, p: [[n * rng.choice((1, p["c"])) for n in numbers(rng)]],
    ),
    call(
        name="count_between",
        question="Write a function `count_between(numbers)` that returns how many numbers are from $a to $b, both "
        "included.",
        solution="def count_between(numbers):\n    return sum(1 for n in numbers if $a <= n <= $b)\n",
        values={"a": range(-8, 5, 2), "b": (10, 14, 22, 30)},
        draw=lambda rng, p: [numbers(rng, longest=12)],
    ),
    call(
        name="keep_long_words",
        question="Write a function `keep(words)` that returns the list of those words with more than $n "
        "letters, in order.",
        solution="def keep(words):\n    return [w for w in words if len(w) > $n]\n",
        values={"n": range(1, 11)},
        draw=lambda rng, p: [[w[: rng.randint(1, 6)] * rng.randint(1, 2) for w in words(rng)]],
    ),
    call(
        name="every_nth",
        question="Write a function `every(items)` that returns every ${n}th item of the list, starting with item "
        "number $k (counted from 1).",
        solution="def every(items):\n    return items[$k - 1 :: $n]\n",
        values={"n": range(4, 8), "k": range(1, 5)},
        draw=lambda rng, p: [numbers(rng, shortest=6, longest=15)],
    ),
    call(
        name="three_way",
        question='Write a function `grade(x)` that returns "low" if x is below $a, "high" if x is above $b, and '
        '"$w" otherwise.',
        solution='def grade(x):\n    if x < $a:\n        return "low"\n    return "high" if x > $b else "$w"\n',
        values={"a": range(10, 50, 10), "b": range(50, 90, 10), "w": ("fair", "middle", "good")},
        draw=lambda rng, p: [rng.choice((p["a"], p["b"], rng.randint(0, 100)))],
    ),
    call(
        name="replace_vowels",
        question="Write a function `hide(text)` that returns the text with every vowel (a, e, i, o, u) "
        'replaced by "$c".',
        solution='def hide(text):\n    return "".join("$c" if ch in "aeiou" else ch for ch in text)\n',
        values={"c": tuple("*#-.+=~@!_%&")},
        draw=lambda rng, p: [sentence(rng)],
    ),
    call(
        name="shift_list",
        question="Write a function `rotate(items)` that moves the first $n items of the list to its end and "
        "returns the list. The list has more than $n items.",
        solution="def rotate(items):\n    return items[$n:] + items[:$n]\n",
        values={"n": range(1, 13)},
        draw=lambda rng, p: [numbers(rng, shortest=p["n"] + 1, longest=p["n"] + 6)],
    ),
    call(
        name="digit_sum_times",
        question="Write a function `digits(n)` that returns $c times the sum of the decimal digits of n (n "
        "is not negative).",
        solution="def digits(n):\n    return $c * sum(int(d) for d in str(n))\n",
        values={"c": range(2, 14)},
        draw=lambda rng, p: [rng.randint(0, 99999)],
    ),
    call(
        name="clip_list",
        question="Write a function `clip(numbers)` that returns the list with every number below $a replaced by $a "
        "and every number above $b replaced by $b.",
        solution="def clip(numbers):\n    return [min(max(n, $a), $b) for n in numbers]\n",
        values={"a": range(-10, 6, 3), "b": range(12, 30, 5)},
        draw=lambda rng, p: [numbers(rng)],
    ),
    call(
        name="pair_difference",
        question="Write a function `steps(numbers)` that returns how often a number is more than $c larger "
        "than the one before it.",
        solution="def steps(numbers):\n    return sum(1 for a, b in zip(numbers, numbers[1:]) if b - a > $c)\n",
        values={"c": range(1, 13)},
        draw=lambda rng, p: [numbers(rng, longest=12)],
    ),
    stdin(
        name="read_and_filter",
        question="Read one line of integers separated by blanks. Print those larger than $c, one per line, in order. "
        "At least one is.",
        solution="for n in map(int, input().split()):\n    if n > $c:\n        print(n)\n",
        values={"c": range(0, 24, 2)},
        draw=lambda rng, p: lines([*numbers(rng), p["c"] + rng.randint(1, 9)]),
    ),
    stdin(
        name="read_n_lines",
        question="The first line holds n, then n lines follow with one integer each. Print the sum of the "
        "integers plus $c.",
        solution="n = int(input())\nprint(sum(int(input()) for _ in range(n)) + $c)\n",
        values={"c": range(1, 16)},
        draw=lambda rng, p: (lambda values: lines(len(values), *values))(numbers(rng)),
    ),
    stdin(
        name="read_words",
        question='Read one line of words separated by blanks. Print the words in alphabetical order, joined by "$c".',
        solution='print("$c".join(sorted(input().split())))\n',
        values={"c": tuple("-+*/:;,.|_=~")},
        draw=lambda rng, p: lines(words(rng)),
    ),
    call(
        name="capitalise_nth",
        split="val",
        question="Write a function `mark(words)` that returns the list with the words at index $n and after "
        "in upper case.",
        solution="def mark(words):\n    return words[:$n] + [w.upper() for w in words[$n:]]\n",
        values={"n": range(1, 13)},
        draw=lambda rng, p: [words(rng, shortest=3, longest=p["n"] + 5)],
    ),
    call(
        name="sum_of_powers",
        split="val",
        question="Write a function `powers(n)` that returns 1**$k + 2**$k + ... + n**$k, where ** is the "
        "power. powers(0) is 0.",
        solution="def powers(n):\n    return sum(i**$k for i in range(1, n + 1))\n",
        values={"k": range(2, 14)},
        draw=lambda rng, p: [rng.randint(0, 25)],
    ),
    stdin(
        name="read_until",
        split="val",
        question='Read words, one per line, until the line "$w". Print how many words came before it.',
        solution='count = 0\nwhile input() != "$w":\n    count += 1\nprint(count)\n',
        values={
            "w": ("end", "stop", "done", "quit", "exit", "halt", "over", "finish", "close", "bye", "last", "final")
        },
        draw=lambda rng, p: lines(*[word(rng) for _ in range(natural(rng) % 12)], p["w"], word(rng)),
    ),
)
