"""Names and categories of a program's tensors: parameters, buffers, gradients, optimizer state.

Names are those of `model.named_modules()`. Where several models are called in one step (a GAN), each gets its class
name in front.
"""

import torch


def name_modules(roots):
    """Path of every module below these roots, by the identity of the module."""
    inner = {id(m) for root in roots for m in root.modules() if m is not root}
    roots = [root for root in roots if id(root) not in inner]
    names = {}
    prefixes = _prefixes(roots)
    for index, root in enumerate(roots):
        for path, module in root.named_modules(prefix=prefixes[index]):
            names.setdefault(id(module), path)
    return names


def _prefixes(roots):
    if len(roots) == 1:
        return [""]
    classes = [type(root).__name__ for root in roots]
    numbered = [f"{name}#{classes[:i].count(name) + 1}" for i, name in enumerate(classes)]
    return [numbered[i] if classes.count(name) > 1 else name for i, name in enumerate(classes)]


def owned_tensors(roots, names):
    """(parameter or buffer, category, path of its module) of everything below these roots."""
    for root in roots:
        for module in root.modules():
            path = names.get(id(module), "")
            for parameter in module._parameters.values():
                if parameter is not None:
                    yield parameter, "parameter", path
            for buffer in module._buffers.values():
                if buffer is not None:
                    yield buffer, "buffer", path


def optimized_parameters(optimizers):
    """Every parameter these optimizers update."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def state_tensors(optimizers):
    """(parameter, tensor) for everything these optimizers remember; lists inside of a state are looked into."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for value in state.values() if isinstance(state, dict) else ():
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, torch.Tensor):
                        yield parameter, tensor
