"""Which of an answer's blocks count: those that define the wanted name, and no comments or sessions."""

import pytest

from reward.extract import extract_code

GCD = "def gcd(a, b):\n    return b and gcd(b, a % b) or a\n"
METHOD = "class Solution:\n    def gcd(self, a, b):\n        return b and self.gcd(b, a % b) or a\n"


def in_blocks(*blocks: str) -> str:
    return "".join(f"So:\n```python\n{block}```\n" for block in blocks)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (GCD, "print(gcd(12, 18))\n"),
        (GCD, "assert gcd(12, 18) == 6\nresult = gcd(7, 5)\n"),
        (METHOD, "sol = Solution()\nprint(sol.gcd(12, 18))\n"),
        (GCD, "gcd(12, 18) -> 6\n"),
        ("import math\ngcd = math.gcd\n", "print(gcd(12, 18))\n"),
        ("from math import gcd\n", "print(gcd(12, 18))\n"),
        (METHOD, "gcd = Solution().gcd\nprint(gcd(12, 18))\n"),
        (GCD, "import solution\ngcd = solution.gcd\n"),
        ("gcd = lambda a, b: 1\n", "gcd: int\nx: int = gcd(1, 2)\n"),
        ("first, gcd = lambda a: 1, lambda a, b: 2\n", "print(gcd(1, 2))\n"),
        ("async def gcd(a, b):\n    return 1\n", "gcd += 1\n"),
        ("if True:\n    def gcd(a, b):\n        return 1\n", "for x in gcd(1, 2):\n    pass\n"),
        ("def gcd(a, b:\n    return 1\n", "print(gcd(1, 2))\n"),  # what does not compile is what counts
    ],
)
def test_the_last_block_that_defines_the_wanted_name_counts(first: str, second: str) -> None:
    assert extract_code(in_blocks(first, second), "gcd") == first
    assert extract_code(in_blocks("x = 1\n", first, second, second), "gcd") == first
    assert extract_code(in_blocks(second, first), "gcd") == first
    assert extract_code(in_blocks(first, second)) == second
    assert extract_code(in_blocks(first, second), "other") == second
    assert extract_code(in_blocks(first, second).replace("python", ""), "gcd") == first


@pytest.mark.parametrize(
    "last",
    ["def gcd(a, b):\n    return 2\n", "gcd = lambda a, b: (\n", "class gcd:\n    pass\n",
     "class Solution:\n    def gcd(self, a, b):\n        return (\n"],  # cut short, or wrong
)  # fmt: skip
def test_the_last_of_those_that_define_the_wanted_name_counts(last: str) -> None:
    assert extract_code(in_blocks(GCD, "print(gcd(1, 2))\n", last), "gcd") == last


@pytest.mark.parametrize(
    "block",
    ["# gcd(12, 18) -> 6\n", "\n\t# one\r\n\n  # two", ">>> gcd(12, 18)\n6\n", "# use\n\n  >>> gcd(1, 1)\n",
     "!pip install numpy\n", "# once\n%pip install numpy\n\n  $ ls\n"],
)  # fmt: skip
def test_comments_sessions_and_commands_are_no_code(block: str) -> None:
    for names in ((), ("gcd",)):
        assert extract_code(in_blocks(GCD, block), *names) == GCD
        assert extract_code(in_blocks(block), *names) is None
        assert extract_code(f"```\n{GCD}```\nSo:\n```python\n{block}```", *names) == GCD
    for code in ("x = 1  # one\n", '"""\n>>> x\n"""\n', "!pip install numpy\nx = 1\n"):
        assert extract_code(in_blocks(code)) == code


@pytest.mark.parametrize(
    "use",
    [
        "gcd = gcd(12, 18)\nprint(gcd)\n",
        "def gcd(a, b): ...\n",
        'async def gcd(a, b):\n    """Greatest."""\n    raise NotImplementedError("yet")\n',
        "class Solution:\n    def gcd(self, a, b):\n        pass\n",
    ],
)
def test_uses_and_stubs_define_nothing(use: str) -> None:
    assert extract_code(in_blocks(GCD, use), "gcd") == GCD
    assert extract_code(in_blocks(use), "gcd") == use
    again = "gcd = lambda a, b: b and gcd(b, a % b) or a\n"
    assert extract_code(in_blocks(GCD, use, again, use), "other", "gcd") == again


@pytest.mark.parametrize("shown", ["3\n", "[1, 2]\n-1\n", "'YES'", "a - b"])
def test_what_shows_values_is_taken_only_where_there_is_nothing_else(shown: str) -> None:
    program = "a, b = map(int, input().split())\nprint(a - b)\n"
    for blocks in (in_blocks(program, shown), in_blocks(program, shown).replace("python", "")):
        assert extract_code(blocks) == program
    assert extract_code(in_blocks(shown)) == shown


@pytest.mark.parametrize("shown", ["1 2\n", "Hello, world!\n", "Case 1: 3\n"])
def test_output_in_a_block_without_a_language_replaces_no_program(shown: str) -> None:
    assert extract_code(f"```\n{GCD}```\nIt prints\n```\n{shown}```") == GCD
    assert extract_code(in_blocks(GCD, shown)) == shown, "what is called Python may be a program with a mistake"
