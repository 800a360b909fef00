"""What is said of test code that is refused, by the kinds of `reward.judge.faults`: why, and what to do."""

from reward.judge.allowed import MODULES

FAULT_TEXTS = {
    "refused": "{}, which test code may not: it may import "
    f"{', '.join(MODULES)}, and starts no threads or processes, handles no signals and opens no files",
    "nameless": "names no function that the answer could define: set fn_name",
    "vacuous": "passes whatever the answer returns: let it assert something of the answer (HumanEval's wants a last "
    "line check(candidate)), or leave the test out",
    "swallowing": "passes an answer that always raises, as all tests do: let them check outside of `try` and `except`, "
    "or leave the problem out",
    "careless": "passes, as all tests do, an answer that {} whatever it is asked: let them compare whole values with "
    "those that are right, or leave the problem out",
    "untried": "cannot, with the others, be tried with answers that solve nothing ({}): let it do less before it calls "
    "the answer, set limits.judge_s higher, or leave the problem out",
    "uncallable": "calls the answer with what cannot be handed to it ({}): give plain values, or leave the problem out",
    "unusable": "{}: only plain values come back from a call, so leave the problem out",
    "broken": "fails before it calls the answer ({}), so that no answer passes: mend it, or leave the test out",
    "undefined": "uses {}, which it does not define, so that an answer could: import that",
    "crash": "ends the process that runs it ({}): leave out what crashes",
}
