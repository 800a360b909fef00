#!/usr/bin/env bash
# math-verify takes R and r for one variable, so the area of a ring equals 0.
#
# Version:   math-verify 0.9.0 with latex2sympy2-extended 1.11.0
# Guessed:   in a formula R and r, or M and m, are two variables, as in every textbook.
# Behaviour: letters are lowered when LaTeX is read. What is left cancels in sympy: \pi R^2 - \pi r^2 equals 0, R/r
#            equals 1 and r/R, and AB equals ba. A wrong answer with the letters swapped is verified as right.
# Source:    latex2sympy2_extended/latex2sympy2.py, lowercase_symbols (true unless said otherwise); symbols.py,
#            get_symbol
# Seen:      parse of \frac{R}{r}: r/r; verify of it against 1 and against \frac{r}{R}: True
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" math-verify==0.9.0 latex2sympy2-extended==1.11.0 sympy==1.14.0 \
    antlr4-python3-runtime==4.9.3 <<'EOF'
from math_verify import parse, verify

SAME = [
    (r"\pi R^2-\pi r^2", "0"),
    (r"\frac{R}{r}", "1"),
    (r"\frac{R}{r}", r"\frac{r}{R}"),
    ("M-m", "m-M"),
    ("AB", "ba"),
]
for gold, answer in SAME:
    found = parse(f"${gold}$"), parse(f"${answer}$")
    print(f"{gold} read as {found[0][0]}, {answer} as {found[1][0]}")
    assert verify(*found), f"{gold} and {answer} differ"
assert not verify(parse("$x^2-y^2$"), parse("$0$"))
EOF
