"""Prefix trees: every trajectory sees what it would see alone, and shared tokens are computed once."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_rl.packing import TokenSequence, pack_sequences


def test_a_shared_prefix_is_there_once():
    (pack,) = pack_sequences([TokenSequence([1, 2, 3], [0, 0, 1]), TokenSequence([1, 2, 4, 5], [0, 0, 1, 1])], 100)
    assert pack.token_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert pack.position_ids.tolist() == [[0, 1, 2, 2, 3]]
    assert pack.context.tolist() == [1, 1, 3]
    assert pack.targets.tolist() == [3, 4, 5]
    assert pack.lengths.tolist() == [1, 2]
    assert pack.attention_mask[0, 0, 4].tolist() == [True, True, False, True, True]


tokens = st.lists(st.integers(0, 3), min_size=2, max_size=8)


@settings(max_examples=80, deadline=None)
@given(st.lists(tokens, min_size=1, max_size=6), st.integers(1, 30))
def test_every_path_is_the_sequence_itself(sequences, limit):
    packs = pack_sequences([TokenSequence(s, [0] + [1] * (len(s) - 1)) for s in sequences], limit)
    assert sorted(i for pack in packs for i in pack.members) == list(range(len(sequences)))
    for pack in packs:
        size = pack.token_ids.shape[1]
        assert size <= limit or len(set(map(tuple, (sequences[i] for i in pack.members)))) >= 1
        context = pack.context.split(pack.lengths.tolist())
        for member, places in zip(pack.members, context, strict=True):
            visible = pack.attention_mask[0, 0, places[-1]]
            seen = pack.token_ids[0][visible][torch.argsort(pack.position_ids[0][visible])]
            assert seen.tolist() == sequences[member][:-1]


def test_no_pack_is_larger_than_allowed_unless_one_sequence_is():
    sequences = [TokenSequence([i, *range(10, 15)], [0, 1, 1, 1, 1, 1]) for i in range(5)]
    assert [len(pack.members) for pack in pack_sequences(sequences, 12)] == [2, 2, 1]
    assert [len(pack.members) for pack in pack_sequences(sequences, 3)] == [1] * 5
