"""What models say about rows before the first update of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from renshu.algorithms import Extras
from renshu.train.minibatch import Deal
from renshu.train.processes import Processes
from renshu.types import Row

Says = Callable[[Sequence[Row]], Tensor]  # rows → a number for each of their trained tokens, (N,)


@torch.no_grad()
def ask(
    models: Mapping[str, Says], rows: Sequence[Row], wanted: Sequence[bool], deal: Deal, processes: Processes
) -> Extras:
    """What every model says about the wanted rows; of the others an empty tensor.

    models: by their names in `Extras`. deal: says which process passes which rows through them.
    """
    chosen = [index for index, want in enumerate(wanted) if want]
    answers = {name: [torch.empty(0)] * len(rows) for name in models}
    micro = deal([rows[index] for index in chosen])[processes.rank] if models else []

    def share() -> list[tuple[str, int, Tensor]]:
        said: list[tuple[str, int, Tensor]] = []
        for indices in ([chosen[i] for i in batch] for batch in micro):
            part = [rows[i] for i in indices]
            lengths = [sum(row.trained) for row in part]
            for name, model in models.items():
                tensors = torch.split(model(part).cpu(), lengths)
                said += [(name, i, tensor) for i, tensor in zip(indices, tensors, strict=True)]
        return said

    for name, i, tensor in (answer for said in processes.each(share) for answer in said):
        answers[name][i] = tensor
    return Extras(**{name: tuple(tensors) for name, tensors in answers.items()})
