"""Trajectories as prefix trees: tokens that several trajectories begin with are computed once.

One row holds a tree of tokens. A token attends to its ancestors only, and its position is its depth, so that every
trajectory sees exactly what it would see alone. In live traffic the system prompt and often the question are the
same for many trajectories, so this saves half of the work or more, besides all padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One trajectory as the models need it: its tokens, and which of them were sampled."""

    token_ids: Sequence[int]
    action_mask: Sequence[int]

    @property
    def action_positions(self) -> list[int]:
        return [position for position, marked in enumerate(self.action_mask) if marked]


@dataclass(frozen=True, slots=True)
class Pack:
    """Some trajectories of a batch, ready for one forward pass over ``M`` distinct tokens with ``T`` action tokens."""

    token_ids: Tensor
    """long ``[1, M]``."""
    position_ids: Tensor
    """long ``[1, M]``: depth in the tree."""
    attention_mask: Tensor
    """bool ``[1, 1, M, M]``: True where the row's token may see the column's."""
    context: Tensor
    """long ``[T]``: for each action token, the index in M of the token before it, whose hidden state predicts it."""
    targets: Tensor
    """long ``[T]``: the action tokens."""
    lengths: Tensor
    """long ``[B']``: action tokens of each trajectory in this pack; sums to T."""
    members: tuple[int, ...]
    """Indices of the pack's trajectories in the batch, in the order in which their action tokens lie."""

    def to(self, device: torch.device) -> "Pack":
        tensors = (self.token_ids, self.position_ids, self.attention_mask, self.context, self.targets, self.lengths)
        return Pack(*(tensor.to(device) for tensor in tensors), members=self.members)


class _Tree:
    """Tokens by (parent index, token); an index is given in order of arrival, so parents come before children."""

    def __init__(self) -> None:
        self.index: dict[tuple[int, int], int] = {}
        self.parents: list[int] = []
        self.tokens: list[int] = []
        self.depths: list[int] = []

    def missing(self, token_ids: Sequence[int]) -> int:
        """How many tokens `add` would append."""
        node = -1
        for depth, token in enumerate(token_ids):
            child = self.index.get((node, token))
            if child is None:
                return len(token_ids) - depth
            node = child
        return 0

    def add(self, token_ids: Sequence[int]) -> list[int]:
        """The index of each token of the sequence."""
        path: list[int] = []
        node = -1
        for depth, token in enumerate(token_ids):
            child = self.index.setdefault((node, token), len(self.parents))
            if child == len(self.parents):
                self.parents.append(node)
                self.tokens.append(token)
                self.depths.append(depth)
            path.append(child)
            node = child
        return path

    def ancestors(self) -> Tensor:
        """bool ``[M, M]``: row i is True at i and at its ancestors."""
        mask = torch.eye(len(self.parents), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask


def pack_sequences(sequences: Sequence[TokenSequence], max_tokens: int) -> list[Pack]:
    """Split a batch into packs of at most `max_tokens` distinct tokens; a longer sequence gets a pack of its own.

    Sequences are sorted so that common prefixes meet. No sequence is split.
    """
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i].token_ids))
    packs: list[Pack] = []
    tree, members = _Tree(), list[int]()
    for i in order:
        if members and len(tree.parents) + tree.missing(sequences[i].token_ids) > max_tokens:
            packs.append(_finish(tree, members, sequences))
            tree, members = _Tree(), []
        tree.add(sequences[i].token_ids)
        members.append(i)
    if members:
        packs.append(_finish(tree, members, sequences))
    return packs


def _finish(tree: _Tree, members: list[int], sequences: Sequence[TokenSequence]) -> Pack:
    context: list[int] = []
    targets: list[int] = []
    lengths: list[int] = []
    for i in members:
        path = tree.add(sequences[i].token_ids)
        actions = sequences[i].action_positions
        context += [path[position - 1] for position in actions]
        targets += [sequences[i].token_ids[position] for position in actions]
        lengths.append(len(actions))
    return Pack(
        token_ids=torch.tensor([tree.tokens]),
        position_ids=torch.tensor([tree.depths]),
        attention_mask=tree.ancestors()[None, None],
        context=torch.tensor(context),
        targets=torch.tensor(targets),
        lengths=torch.tensor(lengths),
        members=tuple(members),
    )
