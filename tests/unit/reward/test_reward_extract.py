import time

import pytest

from reward.extract import extract_code


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("Sure:\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```py\nx = 1\n```", "x = 1\n"),
        ("```python\nfirst = 1\n```\n```python\nsecond = 2\n```", "second = 2\n"),
        ("```python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)\n"),  # a shown output is no program
        ("```python\nprint(1)\n", "print(1)\n"),  # cut by the length limit
        ("Text ```Python3\r\nprint(1)```", "print(1)"),
        ("def f(x):\n    return x", "def f(x):\n    return x"),
        ("print(sum(map(int, input().split())))", "print(sum(map(int, input().split())))"),
        ("import sys", "import sys"),
        ("<answer>\nimport sys\n</answer>\n", "import sys\n"),
        ("<think>Hm.</think>\n<answer>import sys</answer>", "import sys"),
        ("[PYTHON]\nimport sys\n[/PYTHON]", "import sys\n"),
        ("<|python_tag|>import sys", "import sys"),
        ("import sys\n```\nThis imports.", "import sys\n"),  # the prompt opened the fence
        ("```tool_code\nimport sys\n```", "import sys\n"),
        ("```python\n\ufeffimport sys\n```", "import sys\n"),
        ('```python title="x.py" {1,3}\nx = 1\n```', "x = 1\n"),
        ("```{python}\nx = 1\n```", "x = 1\n"),
        ("```{.python .numberLines}\nx = 1\n```", "x = 1\n"),
        ("```python:main.py\nx = 1\n```\n```\n3\n```", "x = 1\n"),
        ("```python3.12\nx = 1\n```\n```\n3\n```", "x = 1\n"),
        ("  ```python\n  if x:\n      y = 1\n z = 2\n  ```\nDone.", "if x:\n    y = 1\nz = 2\n"),
        ("1. Do this:\n\n   ```python\n   def f():\n       return 1\n   ```\n2. Done", "def f():\n    return 1\n"),
        ("- ```python\n  x = 1\n\n  y = 2\n  ```\n- Done", "x = 1\n\ny = 2\n"),
        ("- ```python\n  x = 1\n- ```python\n  # no more\n  ```", "x = 1\n"),
        ("````python\nx = '```'\n````\nDone.", "x = '```'\n"),
        ("```python\nprint('```')\nx = 1\n```\nDone.", "print('```')\nx = 1\n"),
        ('```python\n"""Use ```f()```\n"""\nx = 1\n```', '"""Use ```f()```\n"""\nx = 1\n'),
        ("```python\n# ``` x\nx = 1\n```", "# ``` x\nx = 1\n"),
        ("- ```python\n  x = 1\n     ```\nDone", "x = 1\n   "),
        ("```python\nx = 1```\nIt gives\n```\n1\n```", "x = 1"),
        ("```python\nx = (1\n> 2)\n```", "x = (1\n> 2)\n"),
        ("~~~python\nx = ~~~1\n~~~ = 3\n~~~\nDone.", "x = ~~~1\n~~~ = 3\n"),
        ("So:\n> ```python\n> if x:\n>     y = 1\n>\n> z = x > 1\n> ```\nDone.", "if x:\n    y = 1\n\nz = x > 1\n"),
        *[(f"```{name}\nx = 1\n```\n```\n3\n```", "x = 1\n") for name in ("CPython3.11", "pypy", "ipython3", "py2")],
        *[(f"```python\nx = 1\n{marks}", "x = 1\n") for marks in ("<|im_end|>", "</s> <|endoftext|>\n\n")],
        ("x = 1<|im_end|>\n", "x = 1"),
        ("```python\nx = '<|im_end|>'\n", "x = '<|im_end|>'\n"),
        ("<think>\n```python\nx = 1\n```\n</think>\nSo:\n```\nx = 2\n```", "x = 2\n"),
        ("<think>\n```python\nx = 1\n```\nGood.</think>\nprint(2)", "\nprint(2)"),
        ("```python\nx = 1  # so\n</think>\n\nSo:\n```\nx = 2\n```", "x = 2\n"),
        ("<think>\n```python\nx = 1\n```\n</think>\nThat is it.", "x = 1\n"),
        ("<think>No.</think>\n```python\nx = '</think>'\n```\nDone:\n```\n3\n```", "x = '</think>'\n"),
        ('```python\nx = """\n</think>\n"""\n```\nDone:\n```\n3\n```', 'x = """\n</think>\n"""\n'),
    ],
)
def test_code_is_found(response: str, code: str) -> None:
    assert extract_code(response) == code


@pytest.mark.parametrize(
    "response",
    ["", "hello", "Answer: x", "42", "def f(:", "a\0b = 1", "```python\n\n```", "```bash\nls\n```",
     '```js title="python"\nx = 1\n```', "```pycon\nx = 1\n```", "(" * 10_000],
)  # fmt: skip
def test_no_code(response: str) -> None:
    assert extract_code(response) is None


@pytest.mark.parametrize("response", ["10. ```python\n{}\n```\n", "\t```python\n\n# squares\n{}\n\t```\n"])
def test_code_at_the_margin_keeps_its_indentation_in_an_indented_block(response: str) -> None:
    code = "def f(x):\n    if x:\n        return x * x\n    return 0"
    assert code in (extract_code(response.format(code)) or "")


@pytest.mark.parametrize(
    "before",
    ["I must put it in ```python ``` block.\n\n", "It goes in ```python ... ```.\n", "Write the code in ```\n",
     "For the input ```3 4\n5``` it is:\n", "Input:\n```\n3\n\nSolution:\n",
     "<think>\nMaybe so:\n```python\nn = input()  # hmm, no\n</think>\n\nHere it is:\n\n"],
)  # fmt: skip
def test_prose_may_speak_of_fences_and_leave_them_open(before: str) -> None:
    assert extract_code(f"{before}```python\nprint(input())\n```") == "print(input())\n"


@pytest.mark.parametrize(
    "part",
    [
        "```" + " " * 40_000,
        "```" * 100_000,
        "```\n" * 50_000,
        "> ``` " * 50_000,
        "\n".join(" " * n + "\n" + "`" * n for n in range(3, 500)),
        " " * 400_000 + "```python\n",
        ("- " * 50 + "```") * 4000,
        "\t```python\n" + "\t" * 400_000,
        "</think>" + " " * 200_000 + "x",
        "</think>   x" * 50_000,
        "```python " + "{." * 200_000 + "\n",
        "```python\n" + " \n" * 200_000 + " " * 200_000,
        "```python\n" + "f :" * 100_000 + "\nf(\n```\n```python\n1\n```",
    ],
)
def test_time_grows_with_the_length_only(part: str) -> None:
    started = time.process_time()
    extract_code(part, "f")
    extract_code("```python\nx = 1\n" + part, "f")
    extract_code(part + "\n```python\nx = 1\n```", "f")
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    "behind",
    ["The key step is\n```python\nprint(a + b)\n```", "Usage:\n```python\nsolve()\n```",
     "Without it:\n```python\n# instead of input(), of stdin: 1 2\nprint(solve(1, 2))\n```",
     "To test:\n```python\nimport io, sys\nsys.stdin = io.StringIO('1 2')\nsolve()\n```",
     "```python\nwith patch('sys.stdin', io.StringIO('1 2')):\n    print(solve())\n```",
     "```python\np = Popen(['python', 'a.py'], stdin=PIPE)\np.stdin.write('1 2')\np.stdin.close()\n```",
     "Faster:\n```python\nimport sys\ninput = sys.stdin.readline\n```"],
)  # fmt: skip
def test_the_last_block_that_reads_input_is_the_program(behind: str) -> None:
    program = "def solve():\n    a, b = map(int, input().split())\n    print(a + b)\nsolve()\n"
    assert extract_code(f"```python\n{program}```\n{behind}") == program
    named = "read = input\nprint(sum(map(int, read().split())))\n"
    assert extract_code(f"```python\n{named}```\n{behind}") == named
    second = "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n"
    assert extract_code(f"```python\n{program}```\nShorter:\n```python\n{second}```\n{behind}") == second


@pytest.mark.parametrize(
    "reading",
    ["import os\nf = os.fdopen(0)", "from builtins import input as read", "import sys\nf = sys.__stdin__",
     "import sys\nif local: sys.stdin = open('in')\ninput()"],
)  # fmt: skip
def test_reading_has_many_forms(reading: str) -> None:
    program = f"{reading}\nprint(7)\n"
    assert extract_code(f"```python\ninput()\nprint(0)\n```\nCorrected:\n```python\n{program}```\n") == program
