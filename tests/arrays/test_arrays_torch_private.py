"""Private names of PyTorch that kofn uses: each may go, and the answers stay right."""

import subprocess
import sys
import textwrap

import pytest
import torch

WITHOUT = """
    import torch
    from torch.autograd import forward_ad

    for home, name in (
        (torch._C, "_is_tracing"),
        (torch._C, "_are_functorch_transforms_active"),
        (torch._C._functorch, "is_legacy_batchedtensor"),
        (torch._C, "_len_torch_dispatch_stack"),
        (torch._C, "_current_graph_task_id"),
        (torch._C._autograd, "_get_current_graph_task_keep_graph"),
        (forward_ad, "_current_level"),
    ):
        delattr(home, name)
"""
USES = """
    import numpy as np
    import kofn
    from kofn.arrays.torch import state as torch_state
    from kofn.nn.routing import state as router_state

    x = np.array([2.0, 1.0, 0.5, -1.0])
    leaf = torch.tensor(x, requires_grad=True)
    p = kofn.soft_topk(leaf, 2)
    assert np.allclose(p.detach().numpy(), kofn.soft_topk(x, 2))
    (slope,) = torch.autograd.grad(p[0], leaf)
    moved = [kofn.soft_topk(x + h * np.eye(4), 2)[:, 0] for h in (1e-6, -1e-6)]
    assert np.allclose(slope.numpy(), (moved[0] - moved[1]) / 2e-6, atol=1e-8)
    assert not torch_state.is_eager(leaf)
    assert not router_state.is_recomputing()
"""


@pytest.mark.usefixtures("kernels_on")
def test_without_private_names_the_plain_operations_answer():
    code = textwrap.dedent(WITHOUT + USES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_the_compiler_keeps_its_checks_where_it_does_not_show_them():
    code = """
        import torch
        import kofn
        from kofn.arrays.torch import guards

        guards.guards_being_made = lambda: None  # as where its import fails
        x = torch.randn(3, 8)
        compiled = torch.compile(lambda x: kofn.soft_topk(x, 2), backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), kofn.soft_topk(x, 2))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_without_its_names_fully_shard_is_refused_and_outputs_are_flat(monkeypatch):
    from kofn.arrays.torch.private import _test, sharded_parameters, tree_leaves

    assert list(sharded_parameters(torch.nn.Linear(2, 2))) == []
    FSDPModule = type("FSDPModule", (torch.nn.Linear,), {})
    with pytest.raises(RuntimeError, match="does not know fully_shard"):
        list(sharded_parameters(FSDPModule(2, 2)))
    assert tree_leaves({"a": [1, (2,)]}) == [1, 2]
    monkeypatch.setitem(sys.modules, "torch.utils._pytree", None)
    assert tree_leaves((1, 2)) == [1, 2]
    assert tree_leaves(1) == [1]
    assert _test(torch.Tensor, "_is_gone")(torch.zeros(1))


OPERATOR = """
    import torch

    name = "_AutoDispatchBelowAutograd"
    guard = getattr(torch._C, name)
    delattr(torch._C, name)
    import kofn
    operators = torch.ops.kofn
    setattr(torch._C, name, guard)  # PyTorch itself needs it

    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    p = operators.weights(x, None, 2.0, None, 1.0, "logistic", None)[0]
    wanted = kofn.soft_topk(x, 2)
    assert torch.equal(p, wanted)
    v = torch.randn(2, 5, dtype=torch.float64)
    assert torch.equal(*(torch.autograd.grad(y, x, v)[0] for y in (p, wanted)))
"""


@pytest.mark.usefixtures("kernels_on")
def test_without_them_operators_have_their_derivatives_still():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OPERATOR)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


CONSTANTS = """
    import sys
    import torch
    from kofn.adapters.torch import operators as torch_operators

    marked = []
    torch.compiler.assume_constant_result = lambda function: marked.append(function)
    assert "torch._dynamo" not in sys.modules
    plain = torch_operators._is_served
    import torch._dynamo
    assert plain in marked and torch_operators._is_served is None
"""


@pytest.mark.full
def test_what_the_compiler_takes_for_constant_is_marked_by_its_public_function():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CONSTANTS)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_compiler_that_is_imported_first_does_not_keep_dtensors_from_their_rules():
    """Its import brings that of DTensor, and kofn's rules for it, before it is done itself."""
    code = """
        import sys
        import kofn
        import torch._dynamo

        assert "torch.distributed.tensor" in sys.modules
        assert "kofn.metrics.sharded_temperature" in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
