"""What every integration shares: names, messages without the other library, laziness."""

import re
import subprocess
import sys
import tomllib

from places import ROOT

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


def test_the_extra_is_named_where_onnxscript_is_missing():
    code = "import sys; sys.modules['onnxscript'] = None; import kofn.onnx"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "kofn[onnx]"' in run.stderr.splitlines()[-1]


def test_every_extra_that_is_named_exists():
    top = ROOT
    extras = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    places = [*top.glob("*.md"), *top.glob("docs/*.md"), *top.glob("src/**/*.py")]
    texts = [place.read_text(encoding="utf-8") for place in places]
    named = {name for text in texts for name in re.findall(r'"(?:kofn|\.)\[(\w+)\]"', text)}
    assert {"torch", "transformers", "onnx"} <= named <= set(extras["optional-dependencies"])
