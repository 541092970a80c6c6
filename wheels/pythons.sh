#!/usr/bin/env bash
# Try a wheel on several Pythons, each in an environment of its own.
#
#   wheels/pythons.sh WHEEL [VERSION…]      versions such as 3.14, or 3.14t; all by default
#
# A Python is taken from the path or from pyenv; one that is on neither is built from its sources,
# which takes minutes and the headers of zlib, libffi and OpenSSL. PYTHON_ARCHIVE is the address of
# other sources than python.org's. Everything is in build/pythons. TORCH_INDEX is an index with
# PyTorch for CPUs; PyPI's brings gigabytes of CUDA.
set -euo pipefail

if [ $# -lt 1 ] || [ ! -f "$1" ]; then
	echo "usage: $0 WHEEL [VERSION…]; make dist makes dist/kofn-….whl" >&2
	exit 2
fi
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
place=$checkout/build/pythons
wheel=$(realpath "$1")
shift
versions=("$@")
if [ ${#versions[@]} -eq 0 ]; then versions=(3.11 3.12 3.13 3.14 3.14t); fi
mkdir -p "$place"

built() { # VERSION: build it, and print where it is
	local version=$1 base=${1%t} prefix=$place/$1 archive
	archive=${PYTHON_ARCHIVE:-https://www.python.org/ftp/python/$base.0/Python-$base.0.tar.xz}
	if [ ! -x "$prefix/bin/python$version" ]; then
		echo "building Python $version from $archive" >&2
		rm -rf "$place/source"
		mkdir "$place/source"
		curl -fsSL "$archive" | tar -xJ --strip-components 1 -C "$place/source"
		(
			cd "$place/source"
			options=(--prefix="$prefix" --without-static-libpython)
			if [ "$version" != "$base" ]; then options+=(--disable-gil); fi
			./configure --quiet "${options[@]}"
			make --silent -j "$(nproc)"
			make --silent install
		) >"$place/$version.log" 2>&1 || { tail "$place/$version.log" >&2; return 1; }
		rm -rf "$place/source"
	fi
	echo "$prefix/bin/python$version"
}

interpreter() { # VERSION
	local candidate
	for candidate in "$(command -v "python$1" || true)" "$HOME"/.pyenv/versions/"$1".*/bin/python"$1"; do
		if [ -x "$candidate" ] && "$candidate" -c '' 2>/dev/null; then
			echo "$candidate"
			return
		fi
	done
	built "$1"
}

failed=()
for version in "${versions[@]}"; do
	python=$(interpreter "$version")
	environment=$place/environment-$version
	"$python" -m venv --clear "$environment"
	pip=("$environment/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile)
	"${pip[@]}" "$wheel"
	(cd "$place" && "$environment/bin/python" -W error "$checkout/tests/release/smoke.py" numpy -numba -llvmlite -scipy)
	"${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
	"${pip[@]}" entmax hypothesis jax mpmath packaging pytest scipy
	rm -rf "$place/tests"
	mkdir "$place/tests"
	cp -r "$checkout/tests" "$checkout/pyproject.toml" "$place/tests/"
	(
		cd "$place/tests"
		OMP_NUM_THREADS=1 "$environment/bin/python" -m pytest -q -p no:cacheprovider \
			tests/kernels/test_kernels.py tests/kernels/test_kernels_threads.py tests/maps/test_maps_accuracy.py tests/maps/test_maps_edges.py
	) || failed+=("$version")
	rm -rf "$environment"
done
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed on Python ${failed[*]}" >&2
	exit 1
fi
