#!/usr/bin/env bash
# math-verify reads `ln 2` and `sin x` as products of letters.
#
# Version:   math-verify 0.9.0 with latex2sympy2-extended 1.11.0
# Guessed:   the label \ln 2 accepts the answer `ln 2`, or the answer cannot be read.
# Behaviour: without its backslash a function's name is letters that are multiplied: l * n * 2. So the right answer is
#            refused, a label that is written so accepts `2nl` and refuses \ln 2, and no warning says which of them
#            was misread.
# Source:    math_verify/parser.py, parse, which gives text between $ to latex2sympy in
#            latex2sympy2_extended/latex2sympy2.py: to its grammar letters side by side are a product, and only \ln is
#            a word
# Seen:      ln 2 -> l*n*2, sin x -> i*n*s*x, log_2(5) -> l*o*g_2(5), exp(2) -> E*x*p(2)
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" math-verify==0.9.0 latex2sympy2-extended==1.11.0 sympy==1.14.0 \
    antlr4-python3-runtime==4.9.3 <<'EOF'
from math_verify import parse, verify

for written, bare in [(r"\ln 2", "ln 2"), (r"\sin x", "sin x"), (r"\log_2 5", "log_2(5)"), ("e^2", "exp(2)")]:
    label, answer = parse(f"${written}$"), parse(f"${bare}$")
    print(f"{written}: {label[0]}; {bare}: {answer[0]}")
    assert answer[0].free_symbols - {*"x"}, "no letters are multiplied"
    assert not verify(label, answer) and not verify(answer, label)
assert verify(parse("$ln 2$"), parse("$2nl$"))
EOF
