"""Functions may be named as methods of LeetCode's `class Solution`."""

import pytest

from reward.apps import score_response
from reward.problem import Problem

METHOD = "class Solution:\n    def add(self, a, b):\n        return a + b"
FUNCTION = "def add(a, b):\n    return a + b"
CHECK = "def check(candidate):\n    assert candidate(a=1, b=2) == 3\n    assert candidate(2, 2) == 4\n"
PROBLEMS = [
    *[{"inputs": [[1, 2], [2, 2]], "outputs": [3, 4], "fn_name": name} for name in ("Solution().add", "Solution.add")],
    {"test_code": [f"{CHECK}check(Solution().add)"]},
    {"test_code": [f"{CHECK}check(candidate)"], "fn_name": "Solution().add"},
    {"test_code": [f"{CHECK}check(Solution().add)"], "fn_name": "Solution().add"},
    {"test_code": ["s = 'é'; assert Solution().add(Solution().add(1, 2), 3) == 6", "assert add(2, 2) == 4"]},
]


@pytest.mark.parametrize("input_output", PROBLEMS)
def test_methods_of_solution_are_functions(input_output: dict) -> None:
    problem = Problem.from_input_output(input_output, problem_id=7)
    for answer in (METHOD, FUNCTION):
        score = score_response(problem, f"```python\n{answer}\n```")
        assert score.outcome == "pass", score.detail
        assert score_response(problem, f"```python\n{answer} + 1\n```").outcome == "fail"


@pytest.mark.parametrize(
    ("test", "what"),
    [
        (f"def add(a, b): return a + b\n{CHECK}check(Solution().add)", "makes an object of class Solution"),
        (
            "class Solution:\n    def add(self, a, b): return a + b\nassert Solution().add(1, 2) == 3",
            "names no function",
        ),
        ("s = Solution()\nassert s.add(1, 2) == 3", "makes an object of class Solution"),
        ("assert Solution.add(None, 1, 2) == 3", "takes add of Solution"),
        ("s = 'Solution().add'", "passes whatever"),
    ],
)
def test_other_uses_of_solution_are_refused(test: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"problem 7: test_code 0 .*{what}"):
        Problem.from_input_output({"test_code": [test]}, problem_id=7)


@pytest.mark.parametrize("name", ["Solution().", "Other().add", "Solution().a.b", "add()"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="give a Python name"):
        Problem.from_input_output({"inputs": [[1]], "outputs": [2], "fn_name": name}, problem_id=7)
