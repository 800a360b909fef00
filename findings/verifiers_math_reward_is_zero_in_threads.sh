#!/usr/bin/env bash
# In a thread the maths reward of verifiers is 0 for every right answer, and nothing is logged.
#
# Version:   verifiers 0.4.0 with math-verify 0.9.0
# Guessed:   verify_boxed_math_answer(response, answer) is a plain function of two texts. A @reward method that must not
#            hold up the event loop calls it by asyncio.to_thread and gets the same number.
# Behaviour: it limits math-verify's time by a signal, which only the main thread may set. There math-verify raises a
#            ValueError, and the helper gives 0.0 on any exception, as for an answer that cannot be read. With
#            timeout_seconds=None no signal is set and the reward is right; a process of one's own keeps the limit.
# Source:    verifiers/v1/utils/score.py, verify_boxed_math_answer; math_verify/utils.py, timeout. Public reports of
#            math-verify's own error in threads: its issues 50 and 55
# Seen:      \boxed{\frac{1}{2}} for 0.5: 1.0 on the event loop, 0.0 by asyncio.to_thread, 1.0 there without a limit
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" --no-locks verifiers==0.4.0 math-verify==0.9.0 <<'EOF'
import asyncio
import logging

from verifiers.v1 import verify_boxed_math_answer

logged = []
logging.getLogger().addHandler(handler := logging.Handler())
handler.emit = logged.append
RESPONSE, ANSWER = r"Half of it: \boxed{\frac{1}{2}}", "0.5"


async def rewards():
    return (
        verify_boxed_math_answer(RESPONSE, ANSWER),
        await asyncio.to_thread(verify_boxed_math_answer, RESPONSE, ANSWER),
        len(logged),
        await asyncio.to_thread(verify_boxed_math_answer, RESPONSE, ANSWER, timeout_seconds=None),
    )


on_the_loop, in_a_thread, num_lines, without_limit = asyncio.run(rewards())
print(f"on the loop {on_the_loop}, in a thread {in_a_thread} with {num_lines} lines logged, no limit {without_limit}")
assert (on_the_loop, in_a_thread, num_lines, without_limit) == (1.0, 0.0, 0, 1.0)
EOF
