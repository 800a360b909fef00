"""A heuristic for leaks: does a refinement mention the refiner's prompt, the reward or the earlier answer?

The policy never sees these. The heuristic is for English: it misses leaks in other words, and flags some ordinary
sentences.
"""

import re

RUN = 5
"""The number of consecutive words that are unlikely to be the same by chance."""
WORD = re.compile(r"[^\W_]+(?:[.'’_]+[^\W_]+)*")
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
CLAUSE = re.compile(r"[,;:()<>|]")

ATTEMPT = r"(?:answer|response|solution|reply|replies|attempt|program|code|version|submission)s?"
"""Nouns for the response that the refiner was given."""
EARLIER = r"(?:above|previous|earlier|original|initial|prior|old|given|provided|submitted|your|my)"
"""Adjectives and possessives that say that an ATTEMPT was written before."""
SCORE = r"(?:rewards?|scores?|scored|points?)"
DEFECT = r"(?:mistake|error|bug|flaw)s?"
FAULT = rf"(?:{DEFECT}|{SCORE}|wrong|incorrect|mistaken|flawed|fail(?:s|ed)|forgot|missed|(?:was|did|does) not)"
"""Words that judge an ATTEMPT."""
MENDED = r"(?:corrected|fixed|revised|refined|improved|repaired|rewritten)"

JUDGES = re.compile(
    rf"\b{EARLIER} (?:\w+ )?{ATTEMPT} (?:\S+ ){{0,5}}?{FAULT}\b"
    rf"|\b{EARLIER} (?:wrong|incorrect|mistaken|flawed) {ATTEMPT}\b"
    rf"|^(?:the )?{EARLIER} {ATTEMPT} (?:\w+ly )?(?:\w+ed|was|had)\b"
    rf"|\b(?:the|this|that|first|last) {ATTEMPT} (?:failed|forgot|missed)\b"
    rf"|\b(?:the|this|that|first|last) {ATTEMPT} (?:was|had|got|received) (?:\S+ ){{0,3}}?{FAULT}\b"
    rf"|\b{ATTEMPT} (?:given )?above (?:\S+ ){{0,4}}?{FAULT}\b"
    rf"|\b(?:{DEFECT}|issues?|problems?) (?:in|with) (?:the )?(?:{EARLIER}|first|last) (?:\w+ )?{ATTEMPT}\b"
)
"""A clause that finds fault with an ATTEMPT that was written before."""
MENDS = re.compile(
    rf"\b{MENDED} (?:final )?(?:{ATTEMPT}|one)\b"
    rf"|\bi(?:'ve| have)? (?:\w+ )?(?:{MENDED}|rewrote) (?:\w+ ){{1,2}}?(?:{ATTEMPT}|{DEFECT})\b"
    rf"|\b{ATTEMPT} (?:has been|is now) {MENDED}\b"
    rf"|^(?:{MENDED}|correction)$"
)
"""A clause that announces a correction."""
ASKS_TO_MEND = re.compile(
    r"\b(?:correct|fix|revise|refine|improve|repair|rewrite|debug) (?:the|this|these|that|any|all|my|it)\b"
)
"""A task that asks for a correction, whose answer may announce one."""
SUPPOSES = re.compile(r"(?:\S+ )?(?:if|when|while|unless|until) ")
"""The beginning of a clause that speaks of no attempt in particular."""
SOME = r"(?:\S+ ){0,9}?"
"""Words between two others; a limit keeps the search linear in the length of a sentence."""
GOT = rf"\b(?:it|this|(?:the|this|that|{EARLIER}) {ATTEMPT}) (?:was|is|has|had|got|only|scored|received|earned) {SOME}"
REWARDED = re.compile(
    rf"\brewards? {SOME}NUMBER\b|\bNUMBER {SOME}rewards?\b|^{SCORE} NUMBER\b|\bthe score (?:was|is) NUMBER\b"
    rf"|\bNUMBER of \S+ {SCORE}\b|{GOT}NUMBER {SCORE}\b|{GOT}{SCORE} {SOME}NUMBER\b"
)
"""A sentence that states the reward of a response; NUMBER stands for the reward."""


def speaks_of_prompt(text: str, *, own: str, given: str, reward: float) -> bool:
    """Return whether a refinement mentions something that only the refiner's prompt holds.

    This is so if the refinement has one of the following, and ``given`` does not have the same:

    - RUN consecutive words of the refiner's own prompt, which includes the feedback,
    - a sentence that states the reward of the response (REWARDED),
    - a clause that finds fault with the response (JUDGES), or announces a correction (MENDS) that the task does not ask
      for.

    Args:
        text: The refinement.
        own: The refiner's prompt without question, response and solutions: the template's words and the feedback.
        given: What the refinement may repeat: all that ``own`` lacks.
        reward: The reward of the response.
    """
    if _runs(text) & (_runs(own) - _runs(given)):
        return True
    known = " ".join(_words(given))
    numbers = {f"{abs(reward):.2f}", f"{abs(reward):g}", str(abs(reward))} - {*known.split()}
    forms = [JUDGES] if ASKS_TO_MEND.search(known) else [JUDGES, MENDS]
    for sentence in SENTENCE.split(text.lower()):
        if REWARDED.search(" ".join("NUMBER" if word in numbers else word for word in _words(sentence))):
            return True
        clauses = [" ".join(_words(clause)) for clause in CLAUSE.split(sentence)]
        matches = (
            one for clause in clauses if not SUPPOSES.match(clause) for form in forms for one in form.finditer(clause)
        )
        if any(one[0] not in known for one in matches):
            return True
    return False


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _runs(text: str) -> set[tuple[str, ...]]:
    found = _words(text)
    return {tuple(found[place : place + RUN]) for place in range(len(found) - RUN + 1)}
