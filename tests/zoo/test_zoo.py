"""Every function of the table of calls with every form of arrays: right, or refused by name."""

import pytest

from calls import CALLS
from zoo import of_numpy
from zoo.form import Wrong, hold

FORMS = (*of_numpy.FORMS,)
DTYPES = ("float64", "float32")


def tried(call, forms, dtypes, each_alone=False):
    """What is wrong with a call, by form."""
    wrong, count = {}, 0
    for form in forms:
        names = form.arguments_of(call)
        choices = [names] * bool(names) + [(name,) for name in names] * (
            each_alone and len(names) > 1
        )
        for chosen in choices:
            for dtype in dtypes:
                count += 1
                try:
                    hold(call, form, chosen, dtype)
                except Exception as error:
                    said = str(error) if isinstance(error, Wrong) else f"{error!r}"
                    wrong[f"{form.name}, {dtype}, {', '.join(chosen)}"] = said
    return wrong, count


def served(framework):
    calls = [call for call in CALLS if framework in call.frameworks]
    return pytest.mark.parametrize("call", calls, ids=[call.name for call in calls])


@served("numpy")
def test_numpy(call):
    wrong, _ = tried(call, of_numpy.FORMS, DTYPES[:1])
    assert not wrong, "\n".join(f"{form}: {what}" for form, what in wrong.items())
