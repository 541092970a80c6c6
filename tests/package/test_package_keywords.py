"""Functions answer for keywords that they do not take, with kofn's word for it."""

import ast
import inspect
import re
from contextlib import AbstractContextManager, ExitStack

import numpy as np
import pytest

import kofn
import signatures
from kofn.arrays.names import KEYWORDS, own_keyword
from kofn.maps import topk
from places import ROOT

X = np.array([2.0, 1.0, 0.5])


FUNCTIONS = [pytest.param(each, id=whole) for each, whole in signatures.functions().items()]


def definitions():
    """Every public function as its source has it, of modules that need other libraries, too."""
    for param in FUNCTIONS:
        function = inspect.unwrap(param.values[0])
        node = ast.parse(inspect.getsource(function)).body[0]
        yield pytest.param(node, id=param.id)
    for name in signatures.SOURCES:
        for public, node in signatures.public_of_source(name):
            if isinstance(node, ast.FunctionDef):
                yield pytest.param(node, id=f"kofn.{name}.{public}")


def arguments(function):
    """The arguments of a function, and those of them that have to be given."""
    taken = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind is not each.VAR_KEYWORD
    ]
    return [each.name for each in taken], [
        each.name for each in taken if each.default is each.empty
    ]


def entered(block, answer):
    """A function for a `with` block says nothing before."""
    if isinstance(answer, AbstractContextManager):
        block.enter_context(answer)


def refused(function, word):
    """What a function says of a word, all others being right."""
    given = dict.fromkeys([*arguments(function)[1], word])
    with pytest.raises(TypeError) as error, ExitStack() as block:
        entered(block, function(**given))
    start = f"{function.__name__}() got an unexpected keyword argument {word!r}; "
    assert str(error.value).startswith(start)
    return str(error.value).removeprefix(start)


@pytest.mark.parametrize("node", [*definitions()])
def test_each_ends_with_a_parameter_that_nobody_may_write(node):
    """All but those without arguments, and those that take the options of others."""
    last, first = node.args.kwarg, node.body[1]
    if last is None:
        assert not ast.unparse(node.args)
    elif last.arg != "others":
        assert f"**{last.arg}: " in ast.get_docstring(node)
    else:
        assert ast.unparse(last) == "others: Never"
        answer = f"if others:\n    raise unknown_keyword({node.name}, others)"
        assert ast.unparse(first) == answer


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_answers_with_its_own_word(function):
    taken, _ = arguments(function)
    if "others" not in inspect.signature(function).parameters:
        pytest.skip("it takes the options of others")
    for own, words in KEYWORDS.items():
        target, change, _ = own.partition("=")
        for word in words.split() if target in taken else ():
            if word not in taken:
                means = f"kofn takes {own}{word}" if change else f"kofn calls it {own}"
                assert refused(function, word) == means
    assert refused(function, "zzz") == f"it takes {', '.join(taken)}"
    # The nearest of its own, written with a slip.
    assert refused(function, f"{taken[0]}_") == f"you may mean {taken[0]}"


def test_an_argument_that_has_to_be_given_is_named_by_python():
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'k'$"):
        kofn.soft_topk(X, top_k=2)


def test_the_page_of_names_and_the_table_say_the_same():
    page = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1:3] for row in page.partition("\n\n| You may call")[0].splitlines()[7:]]
    written = {
        word: re.match(r" `(\w+(=1/|=~)?)", own)[1]
        for words, own in rows
        for word in re.findall(r"`(\w+)=", words)
    }
    assert written == {word: own for own, words in KEYWORDS.items() for word in words.split()}
    for word, own in written.items():
        assert own in own_keyword(word, [own.partition("=")[0]])


def test_it_costs_no_frame():
    with pytest.raises(TypeError) as error:
        kofn.soft_topk(X, 2, tau=0.5)
    assert [each.name for each in error.traceback] == ["test_it_costs_no_frame", "soft_topk"]


def test_signatures_leave_it_out():
    assert "others" in inspect.signature(topk.soft_topk).parameters
    assert "others" not in signatures.SNAPSHOT.read_text(encoding="utf-8")


def test_the_page_says_what_a_word_with_a_slip_is_answered():
    answer = refused(kofn.topk, "larger")
    assert answer == "you may mean largest"
    page = " ".join((ROOT / "docs" / "names.md").read_text(encoding="utf-8").split())
    assert f"`topk(x, 2, larger=True)` in `…; {answer}`" in page
