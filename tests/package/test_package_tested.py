"""Each source file has a test file of its name, or tests that import it, or says which hold it."""

import ast
import re

import pytest

from layers import SOURCES, modules
from places import TESTS

BEFORE = """
alpha alpha_loops amounts answer_formulas answer_loops answers any arguments array_code arrays
attention autoencoder_parts axes back_loops back_search backward balls base block_loops blocks
bounded box_section bracket choice choices choosers classes closed code command
conditional_bernoulli constants control_variates costs deepseek_v3 drawing dtensor dtensors
enumeration equation errors examples extremes far fenchel_young fill formulas forward frame
from_torch function glm4_moe gpt_oss guards half_rows header heads implicit implicit_mle
integers integral interleaved jagged jax_axis jax_compiled jax_marginals kernels key_value_cache
keys knapsack knapsack_choice labels lanes largest layout learned_k likelihood linear locks
loops loss_over_shards losses maps margins marked mask mixtral namespace needed noise_loops
of_shards olmoe on_axes on_group on_mesh onward operations options ordered over_shards patching
pathwise per_head price primitives private protocol protocols prune pruner quadrature
qwen2_moe qwen3_moe ranked reduced report resumable root routing rows sae sampling schedule
score score_check search search_lanes segment_loops segment_threshold segments selector settings
sharded_pruner sharded_weight shares simplex sketch sloped softmax split_row starting statistics
sums surrogate_samples table targets taylor tensors theta threshold torch_constants
torch_sampling torch_search torch_taylor_zeros torch_temperature torch_wrapper training
translate truncated unfit untraced vector_math vectors views warm weight weights
when_imported whole_files wide worker
"""
"""Files, by name, that were there when this was first asked. No new one comes in."""


@pytest.fixture(scope="module")
def named():
    """The modules of kofn that tests import, or have in a string, such as a program."""
    found = set()
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            elif isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {*re.findall(r"kofn(?:\.\w+)+", node.value)}
    return found


def says_which(path):
    """Whether the docstring of a file names a test file, which is there."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    files = re.findall(r"\btest_\w+\.py\b", text)
    return bool(files) and all([*TESTS.rglob(file)] for file in files)


def test_each_source_file_is_held_by_a_test(named):
    files = {path.stem for path in TESTS.rglob("test_*.py")}
    left = {
        f"{module}: name a test file after it, import it in one, or name one in its docstring"
        for module, path in modules(SOURCES).items()
        if path.stem not in {"__init__", "__main__", *BEFORE.split()}
        and not any(file.endswith(f"_{path.stem}") for file in files)
        and module not in named
        and not says_which(path)
    }
    assert not left, "\n".join(sorted(left))


def test_names_of_files_that_are_gone_are_gone_here():
    assert {*BEFORE.split()} <= {path.stem for path in SOURCES.rglob("*.py")}
