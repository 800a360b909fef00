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
        ("<think>Hm.</think> <answer>\nimport sys\n</answer>", "import sys\n"),
        ("[PYTHON]\nimport sys\n[/PYTHON]", "import sys\n"),
        ("<|python_tag|>import sys", "import sys"),
        ("import sys\n```\nThis imports.", "import sys\n"),  # the prompt opened the fence
        ("import sys\n```\n```\n3\n```", "import sys\n"),
        ("```tool_code\nimport sys\n```", "import sys\n"),
        ("```python\n\ufeffimport sys\n```", "import sys\n"),
        ('```python title="x.py" {1,3}\nx = 1\n```', "x = 1\n"),
        ("```{python}\nx = 1\n```", "x = 1\n"),
        ("```{.python .numberLines}\nx = 1\n```", "x = 1\n"),
        ("```python:main.py\nx = 1\n```\n```\n3\n```", "x = 1\n"),
        ("```py3\nx = 1\n```\n```Python 3\ny = 2\n```\n```\n3\n```", "y = 2\n"),
        ("```python3.12\nx = 1\n```\n```\n3\n```", "x = 1\n"),
        ("  ```python\n  if x:\n      y = 1\n z = 2\n  ```\nDone.", "if x:\n    y = 1\nz = 2\n"),
        ("1. Do this:\n\n   ```python\n   def f():\n       return 1\n   ```\n2. Done", "def f():\n    return 1\n"),
        ("10. Do this:\n\n\t```python\n\tx = 1\n    if x:\n\t\ty = 2\n\t```", "x = 1\nif x:\n    y = 2\n"),
        ("- ```python\n  x = 1\n\n  y = 2\n  ```\n- Done", "x = 1\n\ny = 2\n"),
        ("~~~python\nx = ~~~1\n~~~ = 3\n~~~\nDone.", "x = ~~~1\n~~~ = 3\n"),
        ("~~~\nx = '```'\n~~~~\nDone.", "x = '```'\n"),
        ("````python\nx = '```'\n````\nDone.", "x = '```'\n"),
        ("Unary:\n```python\nx = 1\n~~~\n```", "x = 1\n~~~\n"),
        ("x = ~~~1", "x = ~~~1"),
        ("```python\nprint('```')\nx = 1\n```\nDone.", "print('```')\nx = 1\n"),
        ('```python\n"""Use ```f()```\n"""\nx = 1\n```', '"""Use ```f()```\n"""\nx = 1\n'),
        ("```python\n# ``` x\nx = 1\n```", "# ``` x\nx = 1\n"),
        (
            '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```',
            'def f():\n    """\n    ```\n    f()\n    ```\n    """\n',
        ),
        ("- ```python\n  x = 1\n     ```\nDone", "x = 1\n   "),
        ("```python\nx = 1```\nIt gives\n```\n1\n```", "x = 1"),
        ("So:\n> ```python\n> if x:\n>     y = 1\n>\n> z = x > 1\n> ```\nDone.", "if x:\n    y = 1\n\nz = x > 1\n"),
        (">```\n>x = 1\n>```", "x = 1\n"),
        (">> - ```python\n>>   x = (1\n> >   > 2)\n>>   ```\nDone.", "x = (1\n> 2)\n"),
        ("- > ~~~python\n  > x = 1\n  > ~~~\nDone.", "x = 1\n"),
        ("> ```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("> ```python\n> x = 1", "x = 1"),
        ("```python\nx = (1\n> 2)\n```", "x = (1\n> 2)\n"),
        *[
            (f"```{name}\nx = 1\n```\n```\n3\n```", "x = 1\n")
            for name in (
                "cpython",
                "CPython3.11",
                "pypy",
                "pypy3",
                "ipython",
                "ipython3",
                "python2",
                "python2.7",
                "py2",
            )
        ],
        ("So ```pypy3\nprint(1)\n```", "print(1)\n"),
        *[
            (f"```python\nx = 1\n{marks}", "x = 1\n")
            for marks in ("<|im_end|>", "<|im_end|>\n", "</s> <|endoftext|>\n\n", "<|eot_id|><|eot_id|>")
        ],
        ("x = 1<|im_end|>\n", "x = 1"),
        ("```python\nx = 1\n```<|im_end|>", "x = 1\n"),
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
    [
        "",
        "hello",
        "Answer: x",
        "42",
        "I do not know.",
        "def f(:",
        "a\0b = 1",
        "```python\n\n```",
        "```bash\nls\n```",
        '```js title="python"\nx = 1\n```',
        "~~~js\nx = 1\n~~~",
        "~~~\n~~~\nx = 1",
        "```pycon\nx = 1\n```",
        "(" * 10_000,
    ],
)
def test_no_code(response: str) -> None:
    assert extract_code(response) is None


@pytest.mark.parametrize(
    "response",
    [
        "10. ```python\n{}\n```\n",
        "1. Solution:\n    ```python\n{}\n    ```\n",
        "\t```python\n\n# squares\n{}\n\t```\n",
    ],
)
def test_code_at_the_margin_keeps_its_indentation_in_an_indented_block(response: str) -> None:
    code = "def f(x):\n    if x:\n        return x * x\n    return 0"
    assert code in (extract_code(response.format(code)) or "")


def test_an_indented_block_may_begin_with_a_comment_at_the_margin() -> None:
    assert extract_code("  ```python\n# squares\n  x = 1\n  ```\n") == "# squares\nx = 1\n"


@pytest.mark.parametrize(
    "prose",
    [
        "I must put it in ```python ``` block.\n\n",
        "It goes in ```python ... ```.\n",
        "Between ```python and ```.\n",
        "Write the code in ```\n",
        "For the input ```3 4\n5``` it is:\n",
    ],
)
def test_prose_may_speak_of_fences(prose: str) -> None:
    assert extract_code(f"{prose}```python\nprint(input())\n```") == "print(input())\n"


@pytest.mark.parametrize(
    "part",
    [
        "```" + " " * 40_000,
        "```" * 100_000,
        "```\n" * 50_000,
        "~~~ ``` " * 50_000,
        "\n".join("~" * n + "\n" + "`" * n for n in range(3, 500)),
        " " * 400_000 + "```python\n",
        ("- " * 50 + "```") * 4000,
        "\t```python\n" + "\t" * 400_000,
        "</think>" + " " * 200_000 + "x",
        "</think>   x" * 50_000,
        "```python " + "{." * 200_000 + "\n",
        ("> " * 50 + "```") * 4000,
        "> " * 40 + "```python\n" + "> " * 200_000 + "\n",
        ">" * 80 + "```python\n" + " " * 200_000 + "\n",
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


def test_ten_times_the_length_takes_some_ten_times_as_long() -> None:
    def cpu_s(num_lines: int) -> float:
        text = "- ~~~ ``` ~~~\n\t``` x\n  ~~~~ y ``` ```\n" * num_lines
        started = time.process_time()
        extract_code(text)
        return time.process_time() - started

    cpu_s(1000)
    assert cpu_s(50_000) < 40 * max(cpu_s(5000), 0.01)


@pytest.mark.parametrize(
    "before",
    [
        "<think>\nMaybe so:\n```python\nn = input()  # hmm, no\n</think>\n\nHere it is:\n\n",
        "Input:\n```\n3\n\nSolution:\n",
    ],
)
def test_a_fence_that_was_left_open_does_not_take_the_answers(before: str) -> None:
    assert extract_code(f"{before}```python\nprint(3)\n```\n") == "print(3)\n"


@pytest.mark.parametrize(
    "behind",
    ["The key step is\n```python\nprint(a + b)\n```", "Usage:\n```python\nsolve()\n```",
     "Without it:\n```python\n# instead of input(), of stdin: 1 2\nprint(solve(1, 2))\n```",
     "To test:\n```python\nimport io, sys\nsys.stdin = io.StringIO('1 2')\nsolve()\n```",
     "```python\nold = sys.stdin\nsys.stdin = io.StringIO('1 2')\nprint(solve())\nsys.stdin = old\n```",
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
     "import io\nf = io.FileIO(0)", "import mmap\nf = mmap.mmap(0, 0)",
     "import sys\nif local: sys.stdin = open('in')\ninput()"],
)  # fmt: skip
def test_reading_has_many_forms(reading: str) -> None:
    program = f"{reading}\nprint(7)\n"
    assert extract_code(f"```python\ninput()\nprint(0)\n```\nCorrected:\n```python\n{program}```\n") == program
