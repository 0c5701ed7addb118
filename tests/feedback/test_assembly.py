"""What trains is what was sampled."""

from hypothesis import given
from hypothesis import strategies as st

from feedback.assembly import assemble, group_of, unusable_reason
from serving.schemas import Generation, Sampling, VersionSpan
from tests.feedback.samples import make_generation


def test_a_single_answer() -> None:
    (draft,) = assemble([make_generation(prompt=(1, 2), answer=(7, 8), version=3)])
    assert draft.token_ids == (1, 2, 7, 8)
    assert draft.action_mask == (0, 0, 1, 1)
    assert draft.behavior_logprobs == (-0.1, -0.2)
    assert draft.spans == (VersionSpan(start=0, end=2, version=3),)


def test_a_second_turn_whose_prompt_goes_on_from_the_first_joins_it() -> None:
    first = make_generation("a", (1, 2), (7, 8), version=1, episode_id="e", at=1)
    second = make_generation("b", (1, 2, 7, 8, 3), (9,), version=2, episode_id="e", at=5)
    (draft,) = assemble([second, first])
    assert draft.token_ids == (1, 2, 7, 8, 3, 9)
    assert draft.action_mask == (0, 0, 1, 1, 0, 1)
    assert draft.behavior_logprobs == (-0.1, -0.2, -0.1)
    assert draft.spans == (VersionSpan(start=0, end=2, version=1), VersionSpan(start=2, end=3, version=2))
    assert [generation.inference_id for generation in draft.generations] == ["a", "b"]


def test_trap_9_a_turn_whose_prompt_was_rewritten_starts_a_trajectory_of_its_own() -> None:
    first = make_generation("a", (1, 2), (7, 8), episode_id="e", at=1)
    # The chat template dropped token 8, as templates do with past reasoning.
    second = make_generation("b", (1, 2, 7, 3), (9,), episode_id="e", at=5)
    one, two = assemble([first, second])
    assert one.token_ids == (1, 2, 7, 8)
    assert two.token_ids == (1, 2, 7, 3, 9)
    assert two.action_mask == (0, 0, 0, 0, 1)


def test_trap_9_text_that_encodes_differently_is_told_by_its_ids() -> None:
    first = make_generation("a", (1,), (70, 71), episode_id="e", at=1)
    second = make_generation("b", (1, 72, 3), (9,), episode_id="e", at=5)  # 72 decodes to the text of 70 71
    assert len(assemble([first, second])) == 2


def test_choices_of_one_prompt_are_apart_with_one_group() -> None:
    choices = [make_generation("a", (1,), (7 + i,), choice=i, sampling=Sampling(n=3)) for i in range(3)]
    drafts = assemble(choices)
    assert [draft.token_ids for draft in drafts] == [(1, 7), (1, 8), (1, 9)]
    assert {group_of(draft.generations[0]) for draft in drafts} == {("a/0", 3)}
    assert len({draft.trajectory_id for draft in drafts}) == 3


def test_requests_with_one_group_id_are_a_group_whose_size_nobody_knows() -> None:
    assert [group_of(make_generation(name, group_id="g")) for name in ("a", "b")] == [("g", 1)] * 2
    assert group_of(make_generation("a", group_id="g", sampling=Sampling(n=3))) == ("g", 3)
    assert group_of(make_generation("a")) == (None, 1)


def test_choices_stay_apart_even_where_one_looks_like_the_past_of_another() -> None:
    # Two prompts of one request: the second begins with the first and its answer.
    one = make_generation("a", (1,), (7,), prompt_index=0)
    two = make_generation("a", (1, 7), (8,), prompt_index=1)
    assert len(assemble([one, two])) == 2


def test_turns_within_one_inference_join() -> None:
    one = make_generation("a", (1,), (7,), turn=0)
    two = make_generation("a", (1, 7, 2), (8,), turn=1)
    (draft,) = assemble([one, two])
    assert draft.action_mask == (0, 1, 0, 1)


def test_an_answer_regenerated_does_not_train_the_past_twice() -> None:
    first = make_generation("a", (1,), (7,), episode_id="e", at=1)
    second = make_generation("b", (1, 7, 2), (8,), episode_id="e", at=2)
    again = make_generation("c", (1, 7, 2), (9,), episode_id="e", at=3)
    one, two = assemble([first, second, again])
    assert one.action_mask == (0, 1, 0, 1)
    assert two.action_mask == (0, 0, 0, 1)


def test_greedy_and_structured_answers_are_flagged() -> None:
    (draft,) = assemble([make_generation(sampling=Sampling(temperature=0.0, structured=True))])
    assert draft.greedy
    assert draft.structured
    (plain,) = assemble([make_generation()])
    assert not plain.greedy
    assert not plain.structured


def test_what_cannot_be_trained_on_is_told_apart() -> None:
    assert unusable_reason(make_generation(answer=())) == "empty"
    assert unusable_reason(make_generation(prompt=())) == "no_prompt"
    assert unusable_reason(make_generation(trainable=False, untrainable_reason="x-train")) == "x-train"
    assert unusable_reason(make_generation()) is None


TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def episodes(draw: st.DrawFn) -> list[Generation]:
    """Conversations in which each prompt goes on from some earlier context, or is rewritten, with several choices."""
    made: list[Generation] = []
    contexts: list[tuple[int, ...]] = [()]
    for turn in range(draw(st.integers(1, 6))):
        past = draw(st.sampled_from(contexts))
        if draw(st.booleans()) and past:
            past = past[: draw(st.integers(0, len(past)))]
        prompt = past + draw(TOKENS)
        n = draw(st.integers(1, 2))
        for choice in range(n):
            answer = draw(TOKENS)
            half = draw(st.integers(0, len(answer)))
            spans = [VersionSpan(start=0, end=half, version=turn)] if half else []
            spans += [VersionSpan(start=half, end=len(answer), version=turn + 1)] if half < len(answer) else []
            logprobs = tuple(draw(st.floats(-20, 0)) for _ in answer)
            made.append(
                make_generation(
                    f"i{turn}",
                    prompt,
                    answer,
                    choice=choice,
                    episode_id="e",
                    at=float(turn),
                    sampling=Sampling(n=n),
                    behavior_logprobs=logprobs,
                    spans=tuple(spans),
                )
            )
            contexts.append(prompt + answer)
    return draw(st.permutations(made))


@given(episodes())
def test_every_sampled_token_trains_once_with_its_own_past_logprob_and_version(made: list[Generation]) -> None:
    drafts = assemble(made)
    assert sorted(g.key for draft in drafts for g in draft.generations) == sorted(g.key for g in made)
    for draft in drafts:
        assert len(draft.token_ids) == len(draft.action_mask)
        versions = [span.version for span in draft.spans for _ in range(span.end - span.start)]
        ends = [span.end for span in draft.spans]
        assert [span.start for span in draft.spans] == [0, *ends][:-1]
        actions = [index for index, mark in enumerate(draft.action_mask) if mark]
        assert len(actions) == len(versions) == len(draft.behavior_logprobs)
        at = 0
        for generation in draft.generations:
            sampled = [span.version for span in generation.spans for _ in range(span.end - span.start)]
            for offset, token in enumerate(generation.token_ids):
                position = actions[at]
                # Exactly what the engine had before it when it sampled this token, and nothing else.
                seen = generation.prompt_token_ids + generation.token_ids[:offset]
                assert draft.token_ids[: position + 1] == (*seen, token)
                assert draft.behavior_logprobs[at] == generation.behavior_logprobs[offset]
                assert versions[at] == sampled[offset]
                at += 1
        assert at == len(actions)


@given(episodes())
def test_assembly_does_not_depend_on_the_order_of_arrival(made: list[Generation]) -> None:
    assert assemble(made) == assemble(list(reversed(made)))
