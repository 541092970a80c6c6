"""Private names of JAX that kofn uses: without them other arrays are served as before."""

import subprocess
import sys
import textwrap


def test_without_private_names_only_functions_of_jax_arrays_fail():
    code = """
        import sys

        import jax.numpy
        import numpy
        import torch

        sys.modules["jax.interpreters"] = None
        import kofn

        x = [2.0, 1.0, 0.5, -1.0]
        p = kofn.soft_topk(numpy.array(x), 2)
        assert numpy.allclose(p, kofn.soft_topk(torch.tensor(x).double(), 2))
        try:
            kofn.soft_topk(jax.numpy.array(x), 2)
        except ImportError as error:
            assert "jax.interpreters" in str(error)
        else:
            raise AssertionError("no error")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
