"""Final answers: found in responses, and compared by math-verify in a judge."""

import asyncio
import json
from pathlib import Path

import pytest

from reward import score
from reward.judge.math_marks import find_answer
from reward.limits import Limits
from reward.math import MathProblem, compute_score, validate_row


def points(answer: object, response: str) -> float | None:
    return MathProblem.from_answer(answer, problem_id=1).score(response, Limits()).score


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First \boxed{3}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("2 + 3 = 5\n#### 5\n", "5"),
        ("\\boxed{5}\n#### 4", "4"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"\boxed{7}. Again: \boxed{7}", "7"),
        (r"\boxed{ \{1, 2\} }", r"\{1, 2\}"),
        (r"\fbox{3}", "3"),
        (r"so it is $\boxed 5$.", "5"),
        (r"\boxed -1,250", "-1,250"),
        (r"\boxed 5x", r"\boxed 5x"),
        (r"escaped twice: \\boxed{3}", "3"),
        (r"\boxed{3 \boxed{4}}", r"3 \boxed{4}"),
        (r"put it in \boxed{ as asked: \boxed{6}", "6"),
        (r"\boxed{5", r"\boxed{5"),
        ("\\boxed{5\nno end", None),
        (r"\boxed{}", None),
        (r"\boxed{4}, \boxed{}", None),
        ("####\n", None),
        ("The answer is 3.5. I hope so.", "3.5"),
        ("**Answer:** 12 cm", "12 cm"),
        ("The answer to this problem is 4.", "4"),
        ("First 3. The final answer to 1.5 + 2.5 is **4**. Done.", "4**"),
        ("The answer to which is not 4.", "not 4"),
        ("Answer to this. It is 4.", "Answer to this. It is 4."),
        ("So the answer is $3$ or $4$.", "$3$ or $4$"),
        ("The answer is\n$$\nx + 1\n$$\nwhich was asked.", "$$\nx + 1\n$$"),
        ("Therefore $x \\geq 5$ is the solution.", "$x \\geq 5$"),
        ("Therefore $x$ is 4 or so.", "Therefore $x$ is 4 or so."),
        ("so that x == 1 or x == 2, thus the result is $2*\\pi*r$", "$2*\\pi*r$"),
        ("We add 3 and 1. The total is: \\[4\\].", "\\[4\\]"),
        ("We add 3 and 1, so we get \\(4\\)", "\\(4\\)"),
        *((text, text) for text in (
            "It is 3 or $4$.", "It is 3, so it is not $4$.", "He has 3, she gets $4$.",
            "It is 3, thus it is $4$ eggs.", "There are 3, of $4$ cups, so it is $5$.", "It is 3, so is it $4$?")),
        ("We add.\n\n**Final Answer**: 72 cm", "72 cm"),
        ("We add.\n\n### Final Answer\n72", "72"),
        ("**Final Answer**\n\n$x = 3$", "$x = 3$"),
        ("The answer is 5.\n### Final Answer\nSo he has 7 eggs.", "5"),
        ("### Final Answer\n- 72 eggs\n- 3 cups", None),
        ("The answer isn't $4$.", "n't $4$"),
        ("We add.\n<answer>72</answer>", "72"),
        ("<answer>\nso\n\\boxed{72}\n</answer> as asked", "72"),
        ("<answer>72</answer> No, \\boxed{73}", "73"),
        ("<answer>72</answer> No, the answer is 73.", "73"),
        ("\\boxed{72} (in <answer></answer>, as asked)", "72"),
        ("So \\boxed{72}.\n\n#### Verification\n72 - 2 = 70", "72"),
        ("#### Step 1: Add\n70 + 2\n\nThe answer is **72**.", "72**"),
        ("#### 1. Add 70 and 2\n\\boxed{72}\n#### (b) Check 72\nIt fits.", "72"),
        ("#### Solution:\n70 + 2\n**Answer:** 72", "72"),
        ("#### **Final answer:** 72", "72"),
        ("$x=\\boxed{1}$ or $x=\\boxed{-2}$", "1, -2"),
        ("#### Final Answer:\n72", "72"),
        ("#### B\nfor two reasons", "B"),
        ("so it is 70 + 2 #### 72", "72"),
        ("\\boxed{no}\n#### yes\n\n", "yes"),
        ("#### Yes 72\nor", None),
        ("<think>\nFirst \\boxed{72}\n</think>\n\nThe answer is 73.", "73"),
        ("<think>\nFirst \\boxed{73}\n</think>\n<answer> 72 </answer>", "72"),
        ("<think>\nSo \\boxed{72}\n</think>\nWe did it.\nDone.", "72"),
        ("<think>\nSo \\boxed{72}\n</think>\n", "72"),
        ("#### 72<|im_end|>", "72"),
        ("Six and six.\n####\n12", "12"),
        ("Six and six.\n####\n\n$12\n", "$12"),
        ("####\n#### 5", "5"),
        ("####\nSo 12 apples\nremain.", None),
        ("<think>a</think>\n<answer>12", "12"),
        ("<think>a</think>\n<answer>\n12\n", "12"),
        ("So it is <answer>12", "12"),
        ("<answer> 12 </answer", "12"),
        ("<answer>12</", "12"),
        ("<answer>12<", "12"),
        ("<answer>x = 12</ans", "x = 12"),
        ("<answer>x < a", "x < a"),
        ("<answer>1</answer>\n<answer>12", "12"),
        ("\\boxed{72} (in <answer>, as asked)", "72"),
        ("<answer>72</answer> as <answer>", "72"),
        ("Put it in <answer> tags.\nSo \\boxed{72}", "72"),
        ("The correct option is (D).", "(D)"),
        ("a\nb", None),
        ("", None),
    ],
)  # fmt: skip
def test_answer_is_found(text: str, answer: str | None) -> None:
    assert find_answer(text) == answer


@pytest.mark.usefixtures("judged_here")
@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("72", ["72", "72.0", "$72", "72.", "x = 72", "**72**", "72 cm"], ["7.2", "-72", "27"]),
        (72, ["72"], ["73"]),
        (r"2\mathrm{i}+1", ["1+2i", r"1+2\text{i}"], ["3", "1"]),
        (r"\frac{\mathrm{e}^2}{2}", [r"\frac12 e^2"], [r"\frac12"]),
        ("3", ["3"], [r"3\mathrm{i}", "3'"]),
        ("f'(x)", ["f'(x)"], ["f(x)"]),
        ("IX", ["IX", r"\text{IX}"], ["XI"]),
        ("BUS", ["BUS"], ["SUB"]),
        ("cat", ["cat", r"\text{cat}"], ["act"]),
        ("xyz", ["zyx"], ["xy"]),
        ("Steps: 3 * 4 = 12\n#### 12", ["12"], ["3"]),
        (r"So it is $\boxed{\frac{1}{3}}$.", ["1/3", r"\dfrac13", r"\frac{2}{6}", "0.333333"], ["0.33", "3"]),
        ("1,234", ["1234", "1,234", r"1{,}234"], ["1", "234"]),
        ("-5", ["-5", "\u22125"], ["5"]),
        ("0.18", ["18%", r"18\%", "9/50"], ["1.8"]),
        (r"(x-1)(x+1)", ["x^2-1", "(x+1)(x-1)", "-1+x^2"], ["x^2+1", "y^2-1"]),
        (r"\sqrt{8}", [r"2\sqrt{2}", r"2\sqrt 2"], [r"\sqrt{2}"]),
        (r"\{1,2\}", ["1, 2", r"\{2, 1\}", "1 and 2", r"1 \text{ or } 2"], ["1", r"\{1,2,3\}", "(2,1)", "(1,2)"]),
        ("(1, 2)", ["(1,2)"], ["(2,1)", "[1,2]"]),
        ("[0, 1)", [r"[0,1)", r"\left[0, 1\right)"], ["(0,1)", "[0,1]"]),
        (r"\begin{pmatrix}1&2\end{pmatrix}", [r"\begin{bmatrix}1&2\end{bmatrix}"], ["(1,2,3)"]),
        ("x > 2", ["2 < x", "x>2"], ["x < 2", r"x \geq 2"]),
        (r"\text{Monday}", ["monday", r"\text{Monday}", "Monday."], ["Tuesday", "yaMdno"]),
        ("B", ["(B)", r"\text{B}", "b"], ["(A)", "A, B"]),
        ("x^2 = -1", ["x^2 = -1"], ["1 = 2", "x = x + 1"]),
        (r"\frac{r}{R}", [r"\frac{r}{R}", r"r/R"], [r"\frac{R}{r}", "1"]),
        ("A-a", ["-a+A"], ["a-A", "0"]),
        (r"\pi", [r"\pi", r"\frac{2\pi}{2}"], [r"\Pi"]),
        (r"\text{Yes}", ["yes", "YES", r"\text{yes}"], ["No"]),
        ("2x", ["**2x**", "**x*2**", "2 x"], ["x**2", "x ** 2", "x **2", "**x**2**"]),
        ("x^2+1", ["x**2 + 1", "1+x**2", "**x**2 + 1**"], ["2x+1", "x**3 + 1"]),
        ("x^{n+1}", ["x**(n+1)", "x ** (n + 1)"], ["x**n+1"]),
        ("2^3", ["2**3", "16*2**-1", "8"], ["2**4", "6", "2**1**3"]),
        ("a - b", ["a-b", "-b+a"], ["b - a"]),
        ("mn - n", ["n(m-1)"], ["n - mn"]),
        ("A and C", ["A, C", "C and A"], ["A", "A and B"]),
        ("well-known", ["Well-known"], ["known-well"]),
        (r"1.6\times 10^{-19}", [r"1.6\times 10^{-19}", r"16\cdot 10^{-20}"], ["0", "0.0", r"9.1\times 10^{-31}"]),
        ("0.0000001", [r"10^{-7}"], ["0.0000004", "0.0"]),
        (r"\frac{1}{70}", ["0.014286"], ["0.0142", "0.0"]),
        ("0", ["0.0"], ["0.1"]),
        ("18", ["18 dollars", "$18$ dollars.", r"\(18\) eggs", "**18** eggs", "**18 eggs**", "18 people", "18 km/h",
                "18 miles per hour", "18 sq ft", "18.0 cookies"],
               ["18 or 20", "18 or twenty", "18 to twenty", "18 million dollars", "18 hundred eggs", "18 dozen eggs",
                "18 percentage points", "18 pi", "18 xyz", "18 abc", "18 abcd", "18 x",
                "18 eggs maybe", "18 tens", "18 eggs and twenty cups",
                "18 perhaps nineteen", "18, no, 20", "18 - eggs", "18 thirds", "18 squared", "18 minus one", "17 eggs",
                "18 over two", "18 theta", "18 feet six inches", "18 (or 19) eggs"]),
        ("1,234.5", ["1234.5 dollars", "1,234.50 dollars"], ["1234 dollars"]),
        ("72", ["approximately 72", r"$\approx 72$", "\u2248 72"], ["approximately 73", "approximately 72 or 73"]),
        (r"\infty", ["\u221e"], ["-\u221e"]),
        (r"2\sqrt{5}", ["2\u221a5", "2\u00b7\u221a5", "2\u221a(5)"], ["2\u221a6", "\u221a5"]),
        ("2x", ["2\u00b7x"], ["3\u00b7x"]),
        ("-3", ["\u20133"], ["3"]),
        ("-2", ["-2"], ["3\u20135"]),
        ("110_2", ["110_2", "110_{2}", "110"], ["110_3", "110_{3}"]),
        ("31", [r"31 \approx 31.2"], [r"31 \approx 47", r"47 \approx 31"]),
        (r"\sqrt{6}", [r"\sqrt{6} \approx 2.449"], [r"\sqrt{6} \approx 3"]),
        (1e-7, ["0.0000001", "10^{-7}"], ["0", "0.0000002"]),
        (r"2\text{ hours }30\text{ minutes}", ["2 hours 30 minutes", r"2\text{ hours and }30\text{ minutes}"],
               [r"2\text{ hours }45\text{ minutes}", "2"]),
        (r"5\text{ ft }6\text{ in}", ["5 ft 6 in"], [r"5\text{ ft }9\text{ in}", r"5\text{ ft}"]),
        ("5", [r"5\text{ cm}^2", "5 cm^2", r"\text{5 cm}", r"5~\text{cm}", r"5\;", r"\boldsymbol{5}", r"5 \pmod{13}",
               "2+3=5", r"\frac{10}{2}=5", "5=a", "2+3=5=a_1"],
              [r"5\text{ hours }30\text{ minutes}", r"5\text{ or 6}",
               "6=5", "x=6=5", "6=a", "5>3=a", "5.1=5", "5.001=5", r"5=5.1\approx 5", "5=e", "5=a!",
               "5 fewer", "5 hours short"]),
        ("18", ["18.0000001=18", r"18\approx 17.5", r"18\text{ km}", r"18\text{ kg}"],
               ["17.5=18", "18=17.5=18", r"18\approx 17", r"18\text{ k}", r"18\text{ K dollars}", r"18\mathrm{k}",
                r"18\text{ dozen}", r"18\text{ dozens of eggs}", r"18\text{ hundred}", r"18\text{ thousand}",
                r"18\text{ thousandths}", r"18\text{ million dollars}", r"18\text{ billion}", r"18\text{ trillion}"]),
        (r"\frac{1}{3}", [r"\frac{1}{3}=0.333333"], [r"\frac{1}{3}=0.33"]),
        (r"300\text{ K}", ["300", r"300\mathrm{K}"], [r"300\text{ thousand}"]),
        ("a", ["a"], ["12=b"]),
        ("10^{22}", ["10^{22}=10000000000000000000000"], ["10^{22}=10000000000000001000000"]),
        (r"\{1,2\}", [r"S=\{1,2\}", r"\{2,1\}=S"], [r"\{1,3\}=S"]),
        ("ABD", ["A, B, D", "A, B and D", "B, A, D"], ["A, B", "A, B, C"]),
    ],
)  # fmt: skip
def test_comparison(answer: object, right: list[str], wrong: list[str]) -> None:
    found = {text: points(answer, f"\\boxed{{{text}}}") for text in [*right, *wrong]}
    assert found == {**dict.fromkeys(right, 1.0), **dict.fromkeys(wrong, 0.0)}


@pytest.mark.usefixtures("judged_here")
@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("8", ["2 + 6 = 8", "8 = 2 + 6", r"16/2 \approx 8", "x = 8", "x_1 = 8", "f(2) = 8", r"x \equiv 8 \pmod{10}",
               "8.0", "{8}", r"\{8\}", r"8^\circ", "8 dollars", r"8\text{ cm}^2", r"8\,\mathrm{cm^{2}}",
               r"8\text{ m/s}", r"8\,\text{m}\,\text{s}^{-1}"],
              ["2 + 6", "2 + 6 =", "6 + 2 = 2 + 6", "x = 2 + 6", "x_1 = 2 + 6", "f(2) = 2^3", r"\text{sum} = 2 + 6",
               "10 - 2", "10 - (2)", "6 - -2", "-(-8)", "2*4", r"2 \times 4", "4\u22c52", "2(4)", "(2)(4)", "(0.2)40",
               "16/2", "16:2", "16/2.0", r"\frac{16}{2}", r"\frac81", r"{16 \over 2}", r"\{2 + 6\}", "|-8|",
               "2^3", r"2^3 \text{ cm}", "64^{1/2}", r"\sqrt{64}", "sqrt(64)", r"\log_2 256"]),
        ("8", [r"\mathbf{8}^\circ", r"\text{8} cm", r"2 + 6 \approx 8"],
              ["16 \u00f7 2", "8/1", "8:1", r"\frac{8}{1}", r"3 \equiv 2 + 6", r"2 + 6 \equiv 3", "2+6=" * 300 + "9"]),
        ("103", ["103", r"103 \approx 102"], [r"97 + 6 \approx 100", r"100 \approx 97 + 6"]),
        (r"\frac{16}{2}", ["8", "16/2", "10 - 2"], ["7"]),
        ("2.25", ["9/4", "2 1/4", "2~1/4", r"2\frac14"],
                 ["(2)(1/4)", r"2(\frac14)", r"(2)\frac14", "9/2/2", r"9 \div 4"]),
        ("-3.5", ["-3 1/2", "-7/2"], ["-3 - 1/2", "3 1/2"]),
        ("3 1/2", ["3 1/2.", r"\text{3 1/2}", "3\u00a01 / 2", "7/2"], ["3/2", "2 1/2", "3 2/2"]),
        ("60", [r"60\text{ km}/\text{h}", r"120/2 = 60\,\mathrm{m}/\mathrm{s}^2", "20(3) = 60",
                r"\frac12(10)(12) = 60"],
               [r"120/2\text{ km}/\text{h}", "20(3) = 61", "60/1", "20(3)"]),
        ("300000", ["3(10^5)", r"3 \cdot 10^5"], ["3(100000)"]),
        ("25%", [r"x = 25\%", r"\frac{10}{40} \times 100\% = 25\%"], [r"x = 20\%", r"25\% = 20\%"]),
        ("1000/3", ["1000/3", r"333\frac13"], ["1/3", "1 000/3"]),
        ("1000", ["1'000", "1,000", r"x = 1{,}000", r"10 \cdot 100 = 1,\!000"], ["1'001", r"x = 1{,}001"]),
        ("-8", ["-8", "-8.0", r"-8\text{ m}", "2 - 10 = -8"], ["2 - 10", "16/-2", r"-\frac{16}{2}", r"8 \cdot -1"]),
        (r"8\text{ dollars}", ["8", "8 dollars"], ["2 + 6", r"10 - 2\text{ dollars}"]),
        ("x = 8", ["8", "x = 8"], ["x = 2 + 6", "2 + 6"]),
        ("6", ["6"], ["3!", r"\binom{4}{2}", "2 4"]),
        (r"\frac{1}{2}", ["0.5", "2/4", "50%", r"{1 \over 2}"],
                         [r"\sin 30^\circ", "1 - 1/2", r"\frac14 + \frac14", r"\frac{1/2}{1}"]),
        ("5.5", ["11/2", r"5\frac{1}{2}", r"5\tfrac12"], [r"5 + \frac{1}{2}", r"\frac{1}{2} \cdot 11"]),
        ("3000", [r"3 \times 10^3", r"3.0\cdot 10^{3}", r"3\,000", r"3,\! 000"], [r"3 \times 1000", "3 * 10^2 * 10"]),
        ("-0.00003", [r"-3 \times 10^{-5}", r"-3 \cdot {10}^{- 5}"], [r"-3 \cdot 0.00001"]),
        (r"-\frac{1}{2}", [r"\frac{1}{-2}", r"\frac{-1}{2}", "-50%"], ["1/2 - 1"]),
        ("2x + 4y - 3 = 0", [r"y = -\frac{1}{2}x + \frac{3}{4}"], [r"y = -\frac{1}{2}x"]),
        (r"3\sqrt{2}", [r"\sqrt{18}", r"\sqrt{2} + \sqrt{8}"], [r"\sqrt{12}"]),
        (r"2 \cdot 3^2", [r"3^2 \cdot 2", "18"], [r"2 \cdot 3"]),
    ],
)  # fmt: skip
def test_a_number_must_be_worked_out(answer: str, right: list[str], wrong: list[str]) -> None:
    test_comparison(answer, right, wrong)


def test_reward_function_says_why() -> None:
    async def graded(*responses: str) -> list[dict[str, float | int | str | None]]:
        return list(
            await asyncio.gather(*(compute_score("openai/gsm8k", text, "72", {"index": 1}) for text in responses))
        )

    right, wrong, nothing = asyncio.run(graded("#### 72", "#### 71", "I do not know.\nNo."))
    assert right == {"score": 1.0, "acc": 1.0, "outcome": "pass", "feedback": ""}
    assert wrong == {"score": 0.0, "acc": 0.0, "outcome": "fail", "feedback": "The final answer is wrong: 71"}
    assert nothing == {"score": 0.0, "acc": 0.0, "outcome": "no_answer", "feedback": "No final answer was found."}
    with pytest.raises(ValueError, match="problem of gsm8k: the expected answer is ' ': give text"):
        asyncio.run(compute_score("gsm8k", "#### 72", " "))


def test_rows_are_checked_before_training() -> None:
    validate_row({"data_source": "d", "reward_model": {"ground_truth": "72"}}, limits={"test_s": 1.0})
    with pytest.raises(ValueError, match="problem of d: the expected answer is ' '"):
        validate_row({"data_source": "d", "reward_model": {"ground_truth": " "}})
    for label in ("Answer: 4", "The sum of both is 4", "answer is x+1", '["4"]'):
        with pytest.raises(ValueError, match="problem of d: no answer can be equal to the expected one: .*, give "):
            validate_row({"data_source": "d", "reward_model": {"ground_truth": label}})
    for label in (4, "2 hours 30 minutes", "June 20", r"x \text{ is odd}", r"So it is $\boxed{4}$.", "So 4.\n#### 4"):
        validate_row({"data_source": "d", "reward_model": {"ground_truth": label}})
    with pytest.raises(ValueError, match="test_s"):
        validate_row({"data_source": "d", "reward_model": {"ground_truth": "72"}}, limits={"test_s": 0})


def test_command_line_takes_answers_beside_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = [
        {"problem_id": "sum", "answer": 5},
        {"problem_id": "echo", "input_output": {"inputs": ["a\n"], "outputs": ["a\n"]}},
        {"problem_id": 0, "answer": 0, "input_output": None},
    ]
    solutions = [
        {"problem_id": "sum", "response": "#### 5"},
        {"problem_id": "echo", "response": "```python\nprint(input())\n```"},
        {"problem_id": "sum", "response": "The answer is 6."},
        {"problem_id": 0, "response": "0"},
    ]
    for name, rows in (("p.jsonl", problems), ("s.jsonl", solutions)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert score.main(["--problems", f"{tmp_path}/p.jsonl", "--solutions", f"{tmp_path}/s.jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["score"], row["outcome"], row["detail"]) for row in rows] == [
        (1.0, "pass", "5"),
        (1.0, "pass", ""),
        (0.0, "fail", "6"),
        (1.0, "pass", "0"),
    ]
    (tmp_path / "p.jsonl").write_text('{"problem_id": 1}\n')
    assert score.main(["--problems", f"{tmp_path}/p.jsonl", "--solutions", f"{tmp_path}/s.jsonl"]) == 2
    assert "no 'input_output': give it, or the final answer as 'answer'" in capsys.readouterr().err
