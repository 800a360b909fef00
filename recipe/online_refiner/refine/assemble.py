"""From what the refiner has written to the refined response a'. All functions here are pure."""

from recipe.online_refiner.method.pairs import Verdict
from recipe.online_refiner.refine.attempt import Attempt, Shape, Written
from recipe.online_refiner.refine.language import Language
from refiner_worker.text.answer import CLOSE_TAG, Answer, Place, edge
from refiner_worker.text.thoughts import Parts


def shape_of(parts: Parts, *, stop: str | None, rewrites_thought: bool) -> Shape:
    """Return how the refinement of a response with these parts is put together.

    Args:
        parts: The response.
        stop: The text at which an answer to the refiner's prompt ends.
        rewrites_thought: Whether thoughts are refined as well (``refiner.rewrites=response``).
    """
    if rewrites_thought and parts.thought.strip():
        return Shape(assemble=anew, head=[], stop=CLOSE_TAG, writes_thought=True)
    if parts.head or parts.rest:
        return Shape(assemble=behind_thought, head=parts.head, stop=stop, writes_thought=False)
    return Shape(assemble=plain, head=[], stop=stop, writes_thought=False)


def plain(language: Language, attempt: Attempt, written: Written) -> Answer:
    """Return a' of a response without a thought: the answer."""
    place = Place(response=attempt.parts.answer or "", stop=attempt.shape.stop)
    return language.parse(written.answer, attempt.rollout, place)


def behind_thought(language: Language, attempt: Attempt, written: Written) -> Answer:
    """Return a' of a response whose own thought is kept: the thought, and the answer in its place.

    A token of the response may hold the end of the closing mark and the beginning of the answer (``parts.rest``). Then
    the mark's end is encoded again, together with the answer.
    """
    answer = _answer(language, attempt, written)
    if answer.failure:
        return answer
    head, rest, turn = attempt.shape.head, attempt.parts.rest, attempt.rollout.turn_ids
    if not rest:
        return _whole(language, [*head, *answer.token_ids])
    ids = language.encode_like(rest + answer.text, turn[len(head) :])
    if ids is None:
        return Answer(token_ids=[], text=answer.text, failure=Verdict.ENCODING)
    return _whole(language, [*head, *ids, answer.token_ids[-1]])


def anew(language: Language, attempt: Attempt, written: Written) -> Answer:
    """Return a' whose thought is written anew: between the marks of the response's own, and the answer behind it.

    Without a thought, or if the thought holds the mark that closes it, there is no a'.
    """
    parts = attempt.parts
    place = Place(response=parts.thought, before=edge(parts.thought), stop=CLOSE_TAG)
    thought = language.parse(written.thought or [], attempt.rollout, place)
    if thought.failure or parts.closing.strip() in thought.text:
        return Answer(token_ids=[], text=thought.text, failure=thought.failure or Verdict.TRUNCATED)
    answer = _answer(language, attempt, written)
    if answer.failure:
        return answer
    opening, closing = language.encode(parts.opening), language.encode(parts.closing)
    return _whole(language, [*opening, *thought.token_ids[:-1], *closing, *answer.token_ids])


def _answer(language: Language, attempt: Attempt, written: Written) -> Answer:
    """Return the answer behind a thought; it begins with the white space that the response's own answer has there."""
    response = attempt.parts.answer or ""
    place = Place(response=response, before=edge(response), behind=attempt.parts.closing, stop=attempt.shape.stop)
    return language.parse(written.answer, attempt.rollout, place)


def _whole(language: Language, ids: list[int]) -> Answer:
    return Answer(token_ids=ids, text=language.decode(ids), failure=None)
