"""Families of the easiest level: one expression is the answer."""

from functools import partial

from experiments.mini_apps.draws import lines, natural, number, numbers, sentence, word
from experiments.mini_apps.family import Family

call = partial(Family, level="easy", kind="call")
stdin = partial(Family, level="easy", kind="stdin")

FAMILIES = (
    call(
        name="add_constant",
        question="Write a function `add_$c(x)` that returns x plus $c.",
        solution="def add_$c(x):\n    return x + $c\n",
        values={"c": range(2, 20)},
        draw=lambda rng, p: [number(rng)],
    ),
    call(
        name="multiply_constant",
        question="Write a function `times_$c(x)` that returns x times $c.",
        solution="def times_$c(x):\n    return x * $c\n",
        values={"c": range(3, 21)},
        draw=lambda rng, p: [number(rng)],
    ),
    call(
        name="linear",
        question="Write a function `line(x)` that returns $a * x + $b.",
        solution="def line(x):\n    return $a * x + $b\n",
        values={"a": range(2, 8), "b": range(1, 8)},
        draw=lambda rng, p: [number(rng)],
    ),
    call(
        name="remainder",
        question="Write a function `mod_$c(x)` that returns the remainder of x divided by $c.",
        solution="def mod_$c(x):\n    return x % $c\n",
        values={"c": range(3, 21)},
        draw=lambda rng, p: [natural(rng)],
    ),
    call(
        name="divisible",
        question="Write a function `divisible_by_$c(x)` that returns True if x is divisible by $c, else False.",
        solution="def divisible_by_$c(x):\n    return x % $c == 0\n",
        values={"c": range(2, 12)},
        draw=lambda rng, p: [p["c"] * rng.randint(1, 30) if rng.random() < 0.5 else natural(rng)],
    ),
    call(
        name="power",
        question="Write a function `$f(x)` that returns x to the power of $c.",
        solution="def $f(x):\n    return x ** $c\n",
        values={"c": range(2, 8), "f": ("power", "raise_number")},
        draw=lambda rng, p: [rng.randint(-9, 12)],
    ),
    call(
        name="at_least",
        question="Write a function `at_least_$c(x)` that returns the larger of x and $c.",
        solution="def at_least_$c(x):\n    return max(x, $c)\n",
        values={"c": range(5, 25)},
        draw=lambda rng, p: [number(rng)],
    ),
    call(
        name="weighted_sum",
        question="Write a function `combine(a, b)` that returns $c times a plus $d times b.",
        solution="def combine(a, b):\n    return $c * a + $d * b\n",
        values={"c": range(2, 7), "d": range(2, 7)},
        draw=lambda rng, p: [number(rng), number(rng)],
    ),
    call(
        name="greet",
        question='Write a function `greet(name)` that returns "$w, " followed by name.',
        solution='def greet(name):\n    return "$w, " + name\n',
        values={"w": ("Hello", "Hi", "Welcome", "Goodbye", "Thanks", "Dear", "Sorry", "Hey", "Cheers", "Bravo")},
        draw=lambda rng, p: [word(rng)],
    ),
    call(
        name="count_letter",
        question='Write a function `count_$c(s)` that returns how many times the letter "$c" is in the string s.',
        solution='def count_$c(s):\n    return s.count("$c")\n',
        values={"c": tuple("aeiourtnls")},
        draw=lambda rng, p: [sentence(rng)],
    ),
    call(
        name="first_items",
        question="Write a function `first_$n($v)` that returns the first $n items of the list $v.",
        solution="def first_$n($v):\n    return $v[:$n]\n",
        values={"n": range(2, 7), "v": ("items", "values", "numbers")},
        draw=lambda rng, p: [numbers(rng)],
    ),
    call(
        name="sum_and_add",
        question="Write a function `total(numbers)` that returns the sum of the list numbers plus $c.",
        solution="def total(numbers):\n    return sum(numbers) + $c\n",
        values={"c": range(1, 16)},
        draw=lambda rng, p: [numbers(rng)],
    ),
    call(
        name="longer_than",
        question="Write a function `is_long(s)` that returns True if the string s has more than $n characters.",
        solution="def is_long(s):\n    return len(s) > $n\n",
        values={"n": range(4, 24)},
        draw=lambda rng, p: [sentence(rng)[: rng.randint(1, 2 * p["n"])]],
    ),
    stdin(
        name="read_and_add",
        question="Read an integer. Print the integer plus $c.",
        solution="x = int(input())\nprint(x + $c)\n",
        values={"c": range(2, 20)},
        draw=lambda rng, p: lines(number(rng)),
    ),
    stdin(
        name="read_two",
        question="Read two integers a and b, one per line. Print $e.",
        solution="a = int(input())\nb = int(input())\nprint($e)\n",
        values={"e": tuple(f"a {x} b {y} {z}" for x in "+-*" for y in "+-" for z in (1, 2, 3, 5))},
        draw=lambda rng, p: lines(number(rng), number(rng)),
    ),
    call(
        name="subtract_constant",
        split="val",
        question="Write a function `minus_$c(x)` that returns x minus $c.",
        solution="def minus_$c(x):\n    return x - $c\n",
        values={"c": range(2, 20)},
        draw=lambda rng, p: [number(rng)],
    ),
    call(
        name="repeat_text",
        split="val",
        question="Write a function `repeat_$c(s)` that returns the string s repeated $c times.",
        solution="def repeat_$c(s):\n    return s * $c\n",
        values={"c": range(2, 14)},
        draw=lambda rng, p: [word(rng)],
    ),
    stdin(
        name="read_and_multiply",
        split="val",
        question="Read an integer. Print the integer times $c.",
        solution="x = int(input())\nprint(x * $c)\n",
        values={"c": range(2, 20)},
        draw=lambda rng, p: lines(number(rng)),
    ),
)
