"""Check the source archive and the wheels of a release: `python check_files.py dist`.

Raises AssertionError with what is wrong.
"""

import sys
import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

from packaging.metadata import Metadata
from packaging.utils import parse_sdist_filename, parse_wheel_filename

import exported

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 10 * 2**20  # bytes; there are no data to ship

IN_SDIST = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "PKG-INFO",
    "README.md",
    "RELEASING.md",
    "SECURITY.md",
    "constraints-lowest.txt",
    "constraints.txt",
    "pyproject.toml",
    "src/kofn/py.typed",
    "docs/README.md",
    "examples/gates.py",
    "studies/router/study.py",
    "wheels/hook.py",
    "tests/release/smoke.py",
    "tests/package/test_package.py",
)


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    assert len(found) == 1, f"{folder} should have one {pattern}, has {[p.name for p in found]}"
    return found[0]


def package_files() -> set[str]:
    """The files that the wheel should have, from the checkout."""
    source = ROOT / "src"
    made = ".so", ".dylib", ".dll", ".pyc"
    kept = (path for path in (source / "kofn").rglob("*") if path.is_file())
    return {path.relative_to(source).as_posix() for path in kept if path.suffix not in made}


def check_metadata(text: bytes, version: str) -> None:
    """Valid by the specification, and what pyproject.toml says where a user sees it."""
    metadata = Metadata.from_email(text, validate=True)
    assert metadata.name == "kofn"
    assert str(metadata.version) == version
    assert metadata.license_expression == "Apache-2.0"
    assert str(metadata.requires_python) == ">=3.11"
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (ROOT / "README.md").read_text(encoding="utf-8")
    needed = {each.name for each in metadata.requires_dist or () if "extra" not in str(each.marker)}
    assert needed == {"numpy"}, needed


def kernels(platform: str) -> set[str]:
    """The names that a library of a platform should export, from the checkout."""
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    from kofn.kernels.cpu import every
    from kofn.kernels.cpu.rows.layout import SERVED
    from kofn.kernels.cpu.runtime.library import name_of
    from wheels.platforms import PLATFORMS

    codes = every.functions(SERVED, (4, 8))
    levels = PLATFORMS[platform].levels
    own = {"kofn_level", "kofn_levels", "kofn_sources", "kofn_xla_serve", "kofn_xla_table"}
    return own | {name_of(code.symbol, level) for code in codes for level in levels}


def platform_of(tags: set[str]) -> str:
    """The platform of a wheel; one with a tag that is not listed is for this machine alone."""
    sys.path[:0] = [str(ROOT)]
    from wheels.platforms import PLATFORMS, own

    listed = {frozenset(each.tags.split(".")): name for name, each in PLATFORMS.items()}
    name = listed.get(frozenset(tags)) or own()
    assert name is not None, f"no platform of wheels/platforms.py has the tags {sorted(tags)}"
    return name


def check_library(data: bytes, platform: str) -> None:
    """It exports each kernel for each level, so that a process finds it."""
    missing = kernels(platform) - exported.names(data)
    assert not missing, f"{len(missing)} missing for {platform}, such as {sorted(missing)[:3]}"


def check_wheel(path: Path) -> None:
    name, version, _, tags = parse_wheel_filename(path.name)
    assert name == "kofn"
    assert {(tag.interpreter, tag.abi) for tag in tags} == {("py3", "none")}
    pure = {tag.platform for tag in tags} == {"any"}
    info = f"kofn-{version}.dist-info"
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        assert wheel.testzip() is None
        check_metadata(wheel.read(f"{info}/METADATA"), str(version))
        about = BytesParser().parsebytes(wheel.read(f"{info}/WHEEL"))
        entries = wheel.read(f"{info}/entry_points.txt").decode()
        for each in names:
            if each.startswith("kofn/kernels/cpu/kofn."):
                platform = platform_of({tag.platform for tag in tags})
                check_library(wheel.read(each), platform)
    assert about["Root-Is-Purelib"] == str(pure).lower()
    assert "kofn = kofn.commands.entry:main" in entries
    assert f"{info}/licenses/LICENSE" in names
    package = {each for each in names if not each.startswith(info)}
    wanted = package_files() - {"kofn/kernels/cpu/compiler/shipped.xz"}
    libraries = package - wanted
    assert wanted <= package, wanted - package
    assert len(libraries) == 1 - pure, libraries
    assert all(each.startswith("kofn/kernels/cpu/kofn.") for each in libraries), libraries
    assert path.stat().st_size < LARGEST


def check_sdist(path: Path) -> None:
    name, version = parse_sdist_filename(path.name)
    assert name == "kofn"
    with tarfile.open(path) as archive:
        parts = [PurePosixPath(each).parts for each in archive.getnames()]
    assert {each[0] for each in parts} == {f"kofn-{version}"}
    names = {"/".join(each[1:]) for each in parts}
    missing = (set(IN_SDIST) | {f"src/{each}" for each in package_files()}) - names
    assert not missing, missing
    assert not [each for each in names if "__pycache__" in each or each.endswith(".so")]
    assert path.stat().st_size < LARGEST


def main(folder: Path) -> None:
    wheels, sdist = sorted(folder.glob("*.whl")), only(folder, "*.tar.gz")
    assert wheels, f"{folder} has no wheel"
    # All that is in the folder is published.
    others = sorted({*folder.iterdir()} - {*wheels, sdist})
    assert not others, f"{folder} should have archives only, has {[path.name for path in others]}"
    for wheel in wheels:
        check_wheel(wheel)
    check_sdist(sdist)
    for path in (sdist, *wheels):
        print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB, contents and metadata checked")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
