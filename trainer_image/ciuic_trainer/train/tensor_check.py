"""Where the first value that is not finite is: in the weights, in the gradients, or in a module's output. Used by watch.py.

All ranks call these together and get the same answer. They cost a pass over what they look at, so they are asked only when
a step has gone wrong.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed

_NONE = 2**31 - 1


@torch.no_grad()
def first_bad_weight(module: Any, device: torch.device) -> str | None:
    names = [name for name, _ in module.named_parameters()]
    flags = [not bool(parameter.ds_tensor.isfinite().all()) for _, parameter in module.named_parameters()]
    return _first(names, flags, device)


@torch.no_grad()
def first_bad_gradient(optimizer: Any, module: Any, device: torch.device) -> str | None:
    """Between backward pass and update."""
    gradients = {
        name: optimizer.get_local_fp32_grad_for_param(parameter) for name, parameter in module.named_parameters()
    }
    return _first(list(gradients), [not bool(gradient.isfinite().all()) for gradient in gradients.values()], device)


@torch.no_grad()
def first_bad_output(engine: Any, tokens: torch.Tensor, device: torch.device) -> str | None:
    """The module that is the first to make something not finite of `tokens`, the smallest one that does so."""
    names: list[str] = []
    flags: list[bool] = []
    engine.eval()
    with _outputs_seen(engine.module, names, flags):
        engine(input_ids=tokens[:, :-1], use_cache=False)
    engine.train()
    return _first(names, flags, device)


@contextmanager
def _outputs_seen(module: Any, names: list[str], flags: list[bool]) -> Iterator[None]:
    def look(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, outputs: Any) -> None:
            tensors = outputs if isinstance(outputs, tuple) else (outputs,)
            floats = [tensor for tensor in tensors if torch.is_tensor(tensor) and tensor.is_floating_point()]
            names.append(name)
            flags.append(not all(bool(tensor.isfinite().all()) for tensor in floats))

        return hook

    handles = [child.register_forward_hook(look(name)) for name, child in module.named_modules() if name]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first(names: list[str], flags: list[bool], device: torch.device) -> str | None:
    """The first that is flagged on any rank. The names are the same on all of them."""
    first = torch.tensor(flags.index(True) if True in flags else _NONE, dtype=torch.int32, device=device)
    torch.distributed.all_reduce(first, op=torch.distributed.ReduceOp.MIN)
    return None if int(first) == _NONE else names[int(first)]
