"""`python -m studies`: the list of studies."""

import sys

from studies.table import STUDIES

if sys.argv[1:] not in ([], ["--help"]):
    print("studies: name the study with a dot, as in python -m studies.router", file=sys.stderr)
    raise SystemExit(2)
print("Small models, trained by several methods and compared:\n")
for study in STUDIES.values():
    print(f"  python -m studies.{study.name:<11}{study.help.splitlines()[0]}")
print("\n--quick takes about a minute; --help lists the options of a study.")
