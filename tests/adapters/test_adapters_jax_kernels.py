"""Kernels inside compiled JAX programs on a CPU: the bits of the eager ones, under every transform.

XLA makes eight devices of one processor only in a process that starts so: this file is its script.
"""

import hashlib
import os
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import kofn
from places import as_program
from support import LINKS, ONE_OF_EACH

RNG = np.random.default_rng(5)
NAME = "kofn_rows"  # how XLA knows the kernels
full = pytest.mark.full


def text(function, *arrays):
    return jax.jit(function).lower(*arrays).as_text()


def numbers(*shape, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# --- which code serves ---


def test_kernels_serve_a_compiled_program():
    x = jnp.asarray(numbers(3, 5))
    assert NAME in text(lambda x: kofn.soft_topk(x, 2), x)
    assert NAME in text(jax.grad(lambda x: kofn.soft_topk(x, 2)[0, 0]), x)
    assert NAME in text(lambda x: kofn.soft_topk_sum(x, 2), x)


def test_the_environment_switches_them_off(monkeypatch):
    x = jnp.asarray(numbers(3, 5))
    on = jax.jit(lambda x: kofn.soft_topk(x, 2))(x)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    assert NAME not in text(lambda x: kofn.soft_topk(x, 2), x)
    assert np.allclose(jax.jit(lambda x: kofn.soft_topk(x, 2))(x), on, atol=1e-13)
    monkeypatch.setenv("KOFN_KERNELS", "off")
    with pytest.raises(ValueError, match="KOFN_KERNELS"):
        text(lambda x: kofn.soft_topk(x, 1.9), x)


def test_other_platforms_and_exported_programs_get_array_code():
    x = jnp.asarray(numbers(3, 5))
    both = jax.jit(lambda x: (kofn.soft_topk(x, 2), jax.grad(lambda x: kofn.softmax(x)[0, 0])(x)))
    assert NAME not in both.trace(x).lower(lowering_platforms=("cuda",)).as_text()
    program = jax.export.export(both)(x)
    assert NAME not in program.mlir_module()
    assert all(map(near, program.call(x), both(x)))


def test_a_program_for_devices_that_are_not_here_gets_array_code():
    """XLA would gather the rows of all devices for a native call, and for rows in groups."""
    mesh = jax.sharding.AbstractMesh((8,), ("rows",))
    place = NamedSharding(mesh, P("rows"))
    x = jax.ShapeDtypeStruct((128, 2048), jnp.float32, sharding=place)
    theta = jax.jit(lambda x: kofn.soft_topk_threshold(x, 2)).trace(x)
    program = theta.lower(lowering_platforms=("cpu",)).as_text()
    assert NAME not in program
    assert "2x64x2048" not in program  # 2 groups


def test_without_numba_the_array_code_serves(monkeypatch):
    from kofn.adapters.jax import operators as jax_operators

    monkeypatch.setattr(jax_operators, "_native", lambda: None)
    x = jnp.asarray(numbers(3, 5))
    assert NAME not in text(lambda x: kofn.soft_topk(x, 2), x)
    assert NAME not in text(lambda x: kofn.soft_topk_threshold(x, 2), x)


def test_a_jaxlib_of_another_version_gets_array_code(monkeypatch):
    from kofn.kernels.cpu.xla import targets

    def refuse(*arguments, **settings):
        raise ValueError("another version")

    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    with pytest.warns(RuntimeWarning, match="array code in JAX's programs.* refuses it: another"):
        assert not targets.available.__wrapped__(*[lambda *_: None] * 5)


# --- their answers ---


def near(a, b, tolerance=1e-11):
    return np.allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    # The threads of XLA have subnormal numbers as 0.
    b = np.where(np.abs(b) < np.finfo(b.dtype).tiny, np.zeros_like(b), b)
    return np.array_equal(a, b, equal_nan=True)


SPECIAL = np.array(
    [
        [1.0, 2.0, -np.inf, 0.5, 3.0],
        [np.inf, 2.0, 1.0, 0.5, np.inf],
        [np.nan, 2.0, 1.0, 0.5, 3.0],
        [-np.inf] * 5,
        [1e30, -1e30, 5.0, 5.0, -3e38],
        [1.0, 1.0 + 1e-6, 1.0, 7e5, -7e5],
    ]
)
ROWS = {
    "short": numbers(40, 5),
    "three dimensions": numbers(3, 7, 64, seed=1),
    "longer": numbers(9, 1000, seed=2),
    "one row": numbers(300, seed=3),
    "special": SPECIAL,
    "far": 1e4 * numbers(20, 33, seed=4),
    "no rows": numbers(0, 4),
}


@pytest.mark.parametrize("link", ["logistic", *(pytest.param(n, marks=full) for n in LINKS[1:])])
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=full)])
@pytest.mark.parametrize("name", ROWS)
def test_the_bits_are_those_of_the_eager_kernels(name, dtype, link):
    with np.errstate(over="ignore"):
        x = ROWS[name].astype(dtype)
    for t in (1.0, 1e-3):
        weights = jax.jit(lambda x, t=t: kofn.soft_topk(x, 2, link=link, temperature=t))
        theta = jax.jit(lambda x, t=t: kofn.soft_topk_threshold(x, 2, link=link, temperature=t))
        assert same(weights(x), kofn.soft_topk(x, 2, link=link, temperature=t))
        wanted = kofn.soft_topk_threshold(x, 2, link=link, temperature=t)
        assert np.allclose(theta(x), wanted, rtol=1e-6, equal_nan=True)
        assert same(weights(x), weights(x))


@pytest.mark.parametrize("link", ["logistic", *(pytest.param(n, marks=full) for n in LINKS[1:])])
@pytest.mark.parametrize("name", ROWS)
def test_gradients_are_those_of_the_eager_kernels(name, link):
    x, c = ROWS[name], numbers(*ROWS[name].shape, seed=9)
    shape = x.shape[:-1]

    def loss(x, k, t):
        return (kofn.soft_topk(x, k, link=link, temperature=t) * c).sum()

    tensors = [
        torch.tensor(a, requires_grad=True) for a in (x, np.full(shape, 1.7), np.ones(shape))
    ]
    weights = kofn.soft_topk(tensors[0], tensors[1], link=link, temperature=tensors[2])
    weights.backward(torch.tensor(c))
    ours = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*(jnp.asarray(t.detach()) for t in tensors))
    for a, b in zip(ours, tensors, strict=True):
        assert np.allclose(a, b.grad, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("shape", [(5, 7), pytest.param((3, 600), marks=full)])
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=full)])
def test_marginals_of_subsets_are_those_of_the_eager_kernels(shape, dtype, monkeypatch):
    x, c = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
    x[0, 0], x[1, 2], x[2, 1] = np.nan, -np.inf, np.inf

    def marginals(x):
        return kofn.KSubset(x, 3).marginals()

    loss = jax.grad(lambda x: (marginals(x) * c).sum())
    leaf = torch.tensor(x, requires_grad=True)
    marginals(leaf).backward(torch.tensor(c))
    assert NAME in text(loss, x)
    assert same(jax.jit(marginals)(x), marginals(x))
    assert same(jax.jit(loss)(x), leaf.grad)
    assert same(jax.vmap(marginals)(jnp.asarray(x)), marginals(x))
    x = jnp.asarray(x, float)[3]
    bent = jax.jit(jax.hessian(lambda x: (marginals(x) * c[0]).sum()))(x)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    assert near(bent, jax.jit(jax.hessian(lambda x: (marginals(x) * c[0]).sum()))(x))


def test_half_types_are_served():
    x = jnp.asarray(numbers(4, 9), jnp.bfloat16)
    p = jax.jit(lambda x: kofn.soft_topk(x, 2))(x)
    assert p.dtype == jnp.bfloat16
    assert same(
        p.astype(float), kofn.soft_topk(x.astype(jnp.float32), 2).astype(p.dtype).astype(float)
    )


def test_several_threads_of_one_call_and_several_calls():
    """Long rows are shared by XLA's threads; calls come from four threads at once."""
    long, many = numbers(2, 150_000, dtype="f", seed=6), numbers(400, 300, dtype="f", seed=7)
    function = jax.jit(jax.value_and_grad(lambda x: (kofn.soft_topk(x, 3) ** 2).sum()))
    weights = jax.jit(lambda x: kofn.soft_topk(x, 3))
    wanted = {id(x): (function(x), kofn.soft_topk(x, 3)) for x in (long, many)}
    wrong = []

    def work():
        for x in (long, many) * 5:
            answer, gradient = function(x)
            (value, slope), p = wanted[id(x)]
            if not (same(answer, value) and same(gradient, slope) and same(weights(x), p)):
                wrong.append(x.shape)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_failure_of_the_reference_is_an_error(monkeypatch, capfd):
    from kofn.adapters.jax import repair as jax_repair

    def fail(*arguments, **settings):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(jax_repair, "finish", fail)
    x = jnp.asarray(ROWS["far"], jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the reference failed"):
        jax.block_until_ready(jax.jit(lambda x: kofn.soft_topk(x, 2, temperature=1e-3))(x))
    assert "on purpose" in capfd.readouterr().err


# --- transforms ---

X, V, C = (jnp.asarray(numbers(3, 6, seed=seed)) for seed in (10, 11, 12))
K, T = jnp.asarray([1.3, 2.0, 3.7]), jnp.asarray([0.7, 1.0, 1.4])


def total(link):
    return lambda x: (kofn.soft_topk(x, K, link=link, temperature=T) * C).sum()


def row(link):
    return lambda x: (kofn.soft_topk(x, 2, link=link) ** 2).sum()


def steps(link):
    def step(x, _):
        return kofn.soft_topk(2 * x, 2, link=link), None

    return lambda x: (jax.lax.scan(step, x, None, length=3)[0] * C).sum()


def in_k(link):
    def loss(k, t):
        return (kofn.soft_topk(X, k, link=link, temperature=t) * C).sum()

    return lambda x: jax.grad(loss, argnums=(0, 1))(K, T)


TRANSFORMS = {
    "grad": lambda n: jax.jit(jax.grad(total(n))),
    "grad in k and T": lambda n: jax.jit(in_k(n)),
    "jvp": lambda n: jax.jit(lambda x: jax.jvp(total(n), (x,), (V,))),
    "hessian": lambda n: jax.jit(jax.hessian(total(n))),
    "jacrev of jacrev": lambda n: jax.jit(jax.jacrev(jax.jacrev(total(n)))),
    "jacfwd of jacfwd": lambda n: jax.jacfwd(jax.jacfwd(total(n))),
    "jacrev of jacfwd": lambda n: jax.jit(jax.jacrev(jax.jacfwd(total(n)))),
    "vmap": lambda n: jax.jit(jax.vmap(row(n))),
    "vmap of grad": lambda n: jax.jit(jax.vmap(jax.grad(row(n)))),
    "grad of vmap": lambda n: jax.jit(jax.grad(lambda x: jax.vmap(row(n))(x).sum())),
    "vmap over k": lambda n: lambda x: jax.vmap(lambda k: kofn.soft_topk(x, k, link=n))(K),
    "vmap along an axis": lambda n: jax.vmap(row(n), in_axes=1),
    "scan": lambda n: jax.jit(jax.grad(steps(n))),
    "checkpoint": lambda n: jax.jit(jax.grad(jax.checkpoint(total(n)))),
    "jit in jit": lambda n: jax.jit(jax.grad(jax.jit(total(n)))),
    "without jit": lambda n: jax.grad(total(n)),
}
QUICK = ("hessian",)


@pytest.mark.parametrize(
    ("transform", "link"),
    [
        (t, n) if n == "logistic" and t in QUICK else pytest.param(t, n, marks=full)
        for t in TRANSFORMS
        for n in ONE_OF_EACH
    ],
)
def test_transforms_are_those_of_the_array_code(transform, link, monkeypatch):
    found = TRANSFORMS[transform](link)(X)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    wanted = TRANSFORMS[transform](link)(X)
    assert all(map(near, jax.tree.leaves(found), jax.tree.leaves(wanted)))


# --- in other processes ---


def run(*arguments, **environment):
    done = as_program(__file__, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def program():
    """Print the sum of weights, and a hash of the program, which holds no address."""
    x = jnp.asarray(numbers(4, 9, dtype="f"))
    both = jax.jit(jax.value_and_grad(lambda x: (kofn.soft_topk(x, 2) ** 2).sum()))
    lowered = both.lower(x)
    print(hashlib.sha256(lowered.as_text().encode()).hexdigest(), float(both(x)[0]))


def sharded():
    """Print what is wrong with programs over eight devices."""
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Auto,))
    x, place = numbers(128, 2048, dtype="f"), NamedSharding(mesh, P("rows"))
    spread = jax.device_put(x, place)
    loss = row("logistic")
    for name, function in {
        "weights": lambda x: kofn.soft_topk(x, 2),
        "gradient": jax.grad(loss),
        "vmap of grad": jax.vmap(jax.grad(loss)),
    }.items():
        compiled = jax.jit(function).lower(spread).compile()
        answer = compiled(spread)
        if "all-gather" in compiled.as_text() or not answer.sharding.is_equivalent_to(place, 2):
            print(name, "gathers")
        if not near(answer, jax.jit(function)(x), 1e-5):
            print(name, "is wrong")
        parts = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("rows"), out_specs=P("rows")))
        if NAME not in parts.lower(spread).as_text():
            print(name, "has no kernel under shard_map")
        if not same(parts(spread), jax.jit(function)(x)):
            print(name, "is wrong under shard_map")


if __name__ == "__main__":
    {"program": program, "sharded": sharded}[sys.argv[1]]()


@full
@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="in jax.experimental before 0.6")
def test_shards_stay_where_they_are():
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=8"
    assert run("sharded", XLA_FLAGS=flags) == []


@full
def test_programs_hold_no_address_and_are_found_on_disk(tmp_path):
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    first = run("program", anew=True, **settings)
    kept = {p.name for p in tmp_path.iterdir() if not p.name.endswith("-atime")}
    second = run("program", anew=True, **settings)
    assert first == second
    assert kept == {p.name for p in tmp_path.iterdir() if not p.name.endswith("-atime")}
    assert any("jit_" in name for name in kept)
