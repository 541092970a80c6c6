"""What every integration shares: names, messages without the other library, laziness."""

import subprocess
import sys

SCRIPT = """
import sys
import kofn, kofn.integrations
assert not {"torch", "transformers"} & set(sys.modules)
sys.modules["transformers"] = None
import kofn.integrations.transformers
"""


def test_the_extra_is_named_where_transformers_is_missing():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert "AssertionError" not in run.stderr
    assert 'pip install "kofn[transformers]"' in run.stderr.splitlines()[-1]
