# SPDX-License-Identifier: Apache-2.0
"""gacc.jax beside the same loop in JAX alone, with jit, trees, bf16 and several ranks."""
import gc
import threading

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from python_package import gacc  # noqa: E402

import gacc.jax  # noqa: E402, F811

LR = 0.1


def tree(dtype=jnp.float32):
    draw = np.random.default_rng(3).normal
    return {"layer": [{"w": jnp.asarray(draw(size=(4, 3)), dtype), "b": jnp.zeros(3, dtype)}], "scale": jnp.asarray(1.5, dtype)}


def batches(n, seed=5):
    rng = np.random.default_rng(seed)
    return [(jnp.asarray(rng.normal(size=(8, 4)), jnp.float32), jnp.asarray(rng.normal(size=(8, 3)), jnp.float32)) for _ in range(n)]


def loss_of(p, batch):
    x, y = batch
    return jnp.mean((jnp.tanh(x @ p["layer"][0]["w"] + p["layer"][0]["b"]) * p["scale"] - y) ** 2)


grad = jax.jit(jax.value_and_grad(loss_of))


def alone(p, windows):
    """Plain JAX: SGD with the mean of each window's gradients."""
    for window in windows:
        grads = [grad(p, b)[1] for b in window]
        p = jax.tree_util.tree_map(lambda v, *g: v - LR * sum(g) / len(g), p, *grads)
    return p


def same(a, b, tolerance):
    assert jax.tree_util.tree_structure(a) == jax.tree_util.tree_structure(b)
    for x, y in zip(jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b)):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=0, atol=tolerance)


def test_a_loop(endpoint):
    """Two full windows and a short one; trees that were read before a step stay as they were."""
    data = batches(7)
    with gacc.jax.Optimizer(tree(), "sgd", lr=LR, micro_size=3) as opt:
        first, seen = opt.params, []
        kept = jax.tree_util.tree_map(np.array, first)
        for b in data:
            loss, g = grad(opt.params, b)
            seen.append(opt.step(g, loss=loss))
        assert seen == [False, False, True, False, False, True, False] and opt.missing == [1, 2]
        assert opt.flush() and not opt.flush() and opt.last.micro_count == 1 and opt.last.applied_step == 3
        assert abs(opt.last.mean_loss - float(loss)) < 1e-6
        same(opt.params, alone(tree(), [data[:3], data[3:6], data[6:]]), 2e-7)
        for a, b in zip(jax.tree_util.tree_leaves(first), jax.tree_util.tree_leaves(kept)):
            np.testing.assert_array_equal(a, b)


def test_ranks_have_the_same_bits(endpoint):
    data, found = batches(8), {}

    def rank(r):
        with gacc.jax.Optimizer(tree(), "sgd", lr=LR, micro_size=2, job="two-jax", rank=r, world=2) as opt:
            for b in data[r::2]:
                opt.step(grad(opt.params, b)[1])
            found[r] = opt.params
    threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    same(found[0], found[1], 0)
    same(found[0], alone(tree(), [data[:4], data[4:]]), 2e-7)


def test_bf16(endpoint):
    """Parameters and gradients of 16 bits; the daemon keeps the values in f32, so that small steps add up."""
    p, g = {"w": jnp.ones(5, jnp.bfloat16)}, {"w": jnp.full(5, 2.0 ** -9, jnp.bfloat16)}
    with gacc.jax.Optimizer(p, "sgd", lr=1.0, micro_size=1) as opt:
        for _ in range(4):
            opt.step(g)
        assert opt.params["w"].dtype == jnp.bfloat16
        assert np.asarray(opt.params["w"], np.float32).tolist() == [1 - 4 * 2.0 ** -9] * 5


def test_a_restarted_rank_goes_on(endpoint):
    data = batches(3)
    made = dict(micro_size=3, lr=LR, job="again-jax")
    opt = gacc.jax.Optimizer(tree(), "sgd", **made)
    opt.step(grad(opt.params, data[0])[1])
    opt.session.detach(done=False)
    with gacc.jax.Optimizer(tree(), "sgd", **made) as opt:
        assert opt.missing == [1, 2]
        for micro in opt.missing:
            opt.step(grad(opt.params, data[micro])[1])
        same(opt.params, alone(tree(), [data]), 2e-7)


@pytest.mark.parametrize("grads, said", [({"w": jnp.ones(3), "v": jnp.ones(3)}, "another tree than the parameters: ['v']"), ([jnp.ones(3)], "another tree"),
                                         ({"w": jnp.ones(4)}, "the gradient of \"['w']\" has 4 elements, not 3")])
def test_gradients_that_are_refused(endpoint, grads, said):
    with gacc.jax.Optimizer({"w": jnp.ones(3)}, "sgd", lr=LR, micro_size=1) as opt:
        with pytest.raises(gacc.GaccError) as e:
            opt.step(grads)
        assert said in str(e.value)
        assert opt.step({"w": jnp.ones(3)})  # it is usable still


def test_jobs_that_are_refused(endpoint):
    with pytest.raises(gacc.GaccError, match="no arrays"):
        gacc.jax.Optimizer({}, micro_size=1)
    with pytest.raises(gacc.GaccError, match="no element type"):
        gacc.jax.Optimizer({"n": jnp.arange(3)}, micro_size=1)
    with gacc.jax.Optimizer({"w": jnp.ones(3)}, "adam", micro_size=1, job="is-there", betas=(0.5, 0.9), lr=0.1):
        for said, arguments in (("micro_size is 2 here and 1 in the job is-there", {"micro_size": 2}), ("optimizer.type is sgd here and adam", {"optimizer": "sgd"}),
                                ("optimizer.beta1 is 0.25 here and 0.5", {"betas": (0.25, 0.9)}), ("clip_norm is 1.0 here and 0.0", {"spec": {"clip_norm": 1.0}})):
            with pytest.raises(gacc.GaccError, match=said) as e:
                gacc.jax.Optimizer({"w": jnp.ones(3)}, job="is-there", **{"micro_size": 1, **arguments})
            assert e.value.reason == "SPEC_MISMATCH"
        again = gacc.jax.Optimizer({"w": jnp.ones(3)}, micro_size=1, job="is-there", lr=0.2)  # a rate comes with each push, and what is left out is the job's
        again.session.close()


def test_a_dropped_optimizer_leaves_its_job(endpoint):
    """As at close(): the job does not wait for its rank any more."""
    opt = gacc.jax.Optimizer(tree(), "sgd", lr=LR, micro_size=1)
    job = opt.session.job_id
    opt.step(grad(opt.params, batches(1)[0])[1])
    with gacc.connect(endpoint) as client:
        assert not client.job(job).has_ended
        del opt
        gc.collect()
        assert client.wait(job, timeout=30).state == "COMPLETED"
