#!/usr/bin/env bash
# math-verify takes Planck's constant for the mass of the electron: numbers near 1e-16 and below are all equal.
#
# Version:   math-verify 0.9.0 with latex2sympy2-extended 1.11.0 and sympy 1.14.0
# Guessed:   verify compares a number's digits, or rounds to the six decimals of float_rounding.
# Behaviour: a number written as a \times 10^{-n} is a product to sympy, and no decimal, so float_rounding is not asked.
#            The difference of two of them is evaluated with chop=True, which makes 0 of what is below 1e-15 or so,
#            whatever their own size. In a data set of physics or chemistry such a label accepts another constant, and
#            its own negative. A higher float_rounding changes nothing; numeric_precision=40 tells them apart.
# Source:    math_verify/grader.py, sympy_numeric_eq (its last branch); sympy/core/evalf.py, evalf. Public report of
#            other small values: issue 14 of Math-Verify
# Seen:      6.63e-34 equals 9.11e-31, 1.60e-19 equals 1.61e-19 and -1.60e-19: True; with float_rounding=40: True; with
#            numeric_precision=40: False. 8.85e-12 and 8.86e-12: False
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" math-verify==0.9.0 latex2sympy2-extended==1.11.0 sympy==1.14.0 \
    antlr4-python3-runtime==4.9.3 <<'EOF'
from math_verify import parse, verify


def number(digits, exponent):
    return parse(rf"${digits} \times 10^{{{exponent}}}$")


PAIRS = [
    (("6.63", -34), ("9.11", -31)),
    (("1.60", -19), ("1.61", -19)),
    (("1.60", -19), ("-1.60", -19)),
]
for first, second in PAIRS:
    gold, answer = number(*first), number(*second)
    found = [verify(gold, answer), verify(gold, answer, float_rounding=40), verify(gold, answer, numeric_precision=40)]
    print(f"{gold[0]} and {answer[0]}: {found[0]}; float_rounding=40: {found[1]}; numeric_precision=40: {found[2]}")
    assert found == [True, True, False], found
assert verify(number("6.63", -34), number("66.3", -35), numeric_precision=40), "the right answer is refused"
assert not verify(number("8.85", -12), number("8.86", -12))
EOF
