"""A kernel of the Kernel Hub where it lies: `kernel.py FOLDER WHAT`, without kofn and NumPy.

test_package_hub.py has written the folder, and kofn's answers beside it.
"""

import importlib.util
import inspect
import json
import sys
import types
from pathlib import Path

BLOCKED = ["kofn", "numpy", "array_api_compat", "jax"]


def loaded(folder, name=None):
    """The kernel of a folder, loaded as kernels.get_local_kernel does."""
    name = name or json.loads((folder / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def answers(kernel, rows, links, torch):
    """Answers and gradients of functions and layers, for scores and weights of each dtype."""
    found, hard = [], links[-1]
    ways = [dict(k=2.5, link=link, temperature=0.5, hard=link == hard) for link in links]
    for x, weight in rows:
        for how in ways:
            scores = x.clone().requires_grad_()
            weights = kernel.soft_topk(scores, **how)
            gates, indices = kernel.topk_gates(scores, 2, link=how["link"], bias=x[0])
            back = torch.autograd.grad((weights * x).sum() + (gates * x[:, :2]).sum(), scores)
            found += [weights, gates, indices, *back]
        found.append(kernel.hard_topk(x, 2.5, mask=x < 1))
        for layer in (kernel.layers.TopKRouter, kernel.layers.SharesTopKRouter):
            found += routed(layer.forward, x, weight, torch)
    return [each.detach() for each in found]


class Router:
    """What a model's router has."""

    top_k = 2

    def __init__(self, torch, weight):
        self.module = torch.nn.Module()
        self.module.weight = torch.nn.Parameter(weight.clone())
        self.module.top_k = self.top_k


def routed(forward, x, weight, torch, compiled=lambda function: function):
    """What a layer gives in the place of a router's forward, with gradients."""
    router, x = Router(torch, weight).module, x.clone().requires_grad_()
    router.forward = types.MethodType(forward, router)
    logits, weights, indices = compiled(router)(x[None])
    back = torch.autograd.grad((weights * x.detach()[:, :2]).sum(), (x, router.weight))
    return logits, weights, indices, *back


def is_pure(layer, torch):
    """What the library `kernels` asks of a layer: a forward pass, and nothing else of its own."""
    usual = {name for name, _ in inspect.getmembers(torch.nn.Module)}
    own = {name for name, _ in inspect.getmembers(layer)} - usual
    return layer.__init__ is torch.nn.Module.__init__ and own <= {
        "can_torch_compile",
        "has_backward",
    }


def side_by_side(folder, torch):
    """Two versions of the kernel, each with operators of its own, answer as kofn does."""
    rows, links, expected = torch.load(folder / "answers.pt")
    one, two = (
        loaded(folder / "build" / "torch-cpu"),
        loaded(folder / "torch-ext" / "kofn_router", "v2"),
    )
    for kernel in (one, two):
        assert all(is_pure(vars(kernel.layers)[name], torch) for name in LAYERS), kernel
        found = answers(kernel, rows, links, torch)
        assert len(found) == len(expected)
        for i, (each, wanted) in enumerate(zip(found, expected, strict=True)):
            assert each.dtype == wanted.dtype, i
            assert each.equal(wanted), (i, each, wanted)
        assert getattr(torch.ops, kernel.__name__).threshold.default
    assert one.topk_gates.__globals__ is not two.topk_gates.__globals__
    there = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
    assert not there & {*BLOCKED}


LAYERS = "TopKRouter", "SharesTopKRouter"


def compiled(folder, torch):
    """A layer and a function are compiled whole, and answer as without."""
    (x, weight), *_ = torch.load(folder / "answers.pt")[0]
    kernel = loaded(folder / "build" / "torch-cpu")
    whole = dict(fullgraph=True, backend="aot_eager")
    forward = kernel.layers.TopKRouter.forward
    usual = routed(forward, x, weight, torch)
    found = routed(forward, x, weight, torch, lambda router: torch.compile(router, **whole))
    torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-6)
    gates = torch.compile(lambda x: kernel.topk_gates(x, 2)[0], **whole)
    torch.testing.assert_close(gates(x), kernel.topk_gates(x, 2)[0], rtol=1e-5, atol=1e-6)


def interpreted(folder, torch):
    """Triton's kernels, in its interpreter, answer as array code does."""
    rows, *_ = torch.load(folder / "answers.pt")
    kernel = loaded(folder / "build" / "torch-cuda")
    x, k = rows[0][0][:2].clone().requires_grad_(), torch.tensor([2.5, 3.0])
    for link in ("logistic", "entmax"):
        usual = kernel.soft_topk(x, k, link=link)
        usual = [usual, *torch.autograd.grad((usual * x.detach()).sum(), x)]
        inside = sys.modules[f"{kernel.__name__}.kernels"]
        cpu, gpu, *_ = inside.BACKENDS
        inside.BACKENDS = (gpu._replace(serves=cpu.serves),)
        found = kernel.soft_topk(x, k, link=link)
        found = [found, *torch.autograd.grad((found * x.detach()).sum(), x)]
        assert f"{kernel.__name__}.kernels.gpu.rows.one_program" in sys.modules
        inside.BACKENDS = (cpu, gpu)
        torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-6)
        assert not torch.equal(found[0], usual[0])


def by_kernels(folder, torch):
    """The library of the Hub loads the folder, and gives a model's router the layer's forward."""
    import kernels

    rows, *_ = torch.load(folder / "answers.pt")
    kernel = kernels.get_local_kernel(folder)
    x, weight = rows[0]
    assert kernel.__name__.startswith("_kofn_router_")
    assert {*kernel.__all__} == {"hard_topk", "layers", "soft_topk", "topk_gates"}

    @kernels.use_kernel_forward_from_hub("Router")
    class Stock(torch.nn.Module):
        def forward(self, hidden_states):
            raise NotImplementedError

    for name in LAYERS:
        model = Stock()
        model.weight, model.top_k = torch.nn.Parameter(weight), 2
        layer = kernels.LocalLayerRepository(repo_path=folder, layer_name=name)
        with kernels.use_kernel_mapping({"Router": {"cpu": layer}}, inherit_mapping=False):
            how = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
            kernels.kernelize(model, mode=how, device="cpu", use_fallback=False)
        expected = routed(vars(kernel.layers)[name].forward, x, weight, torch)
        for each, wanted in zip(model(x), expected, strict=False):
            torch.testing.assert_close(each, wanted, rtol=0, atol=0)


if __name__ == "__main__":
    task = globals()[sys.argv[2]]
    if task in (interpreted, by_kernels):  # Triton's interpreter is NumPy's
        BLOCKED.remove("numpy")
    sys.modules.update(dict.fromkeys(BLOCKED))  # they cannot be imported
    import torch

    task(Path(sys.argv[1]), torch)
