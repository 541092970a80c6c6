#!/usr/bin/env bash
# Try the wheel for aarch64 on a machine of another kind: Debian for aarch64 in a folder, run by QEMU.
#
#   sudo wheels/arm.sh WHEEL [PYTEST ARGUMENTS…]
#
# It needs root, Linux 6.7 or newer, and Debian's packages qemu-user-static and debootstrap. The
# folder is build/arm; it is kept for the next time. Mounts, and the registration of QEMU, are made
# in namespaces of their own: they end with this script, however it ends, and nobody else sees them.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
root=$checkout/build/arm/root
packages=$root/usr/local/lib/python3.11/dist-packages
inside=(/usr/bin/env --chdir=/kofn PYTHONDONTWRITEBYTECODE=1 HOME=/tmp OMP_NUM_THREADS=1 python3)

install() { # the host's pip takes packages for aarch64: under QEMU it would take minutes
	"$checkout/.venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile \
		--only-binary=:all: --python-version 3.11 --implementation cp --platform manylinux_2_28_aarch64 \
		--platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 --target "$packages" "$@"
}

run_inside() { # PYTEST ARGUMENTS…
	local formats=/proc/sys/fs/binfmt_misc magic mask
	magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
	mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
	mount -t binfmt_misc none $formats
	echo ":kofn-aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):FP" >$formats/register
	mkdir -p "$root/kofn/tests"
	mount -t proc proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mount --bind "$checkout/tests" "$root/kofn/tests"
	cp "$checkout/pyproject.toml" "$root/kofn/"

	chroot "$root" "${inside[@]}" tests/release/smoke.py numpy torch jax -numba
	echo "largest errors, in the last place of the dtype: aarch64, then this machine"
	chroot "$root" "${inside[@]}" tests/release/errors.py >"$checkout/build/arm/errors"
	"$checkout/.venv/bin/python" "$checkout/tests/release/errors.py" | paste "$checkout/build/arm/errors" -
	exec chroot "$root" "${inside[@]}" -m pytest -p no:cacheprovider "$@"
}

if [ "${1-}" = --inside ]; then
	shift
	run_inside "$@"
fi

if [ $# -lt 1 ] || [ ! -f "$1" ]; then
	echo "usage: $0 WHEEL [PYTEST ARGUMENTS…]; make wheels makes dist/kofn-…-aarch64.whl" >&2
	exit 2
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "$0: needs root, for debootstrap" >&2
	exit 2
fi
for command in debootstrap qemu-aarch64-static dpkg-deb; do
	if ! command -v "$command" >/dev/null; then
		echo "$0: needs $command; install it with: apt-get install qemu-user-static debootstrap" >&2
		exit 2
	fi
done
wheel=$(realpath "$1")
shift

if [ ! -e "$root/.ready" ]; then
	rm -rf "$root"
	mkdir -p "$root"
	debootstrap --arch=arm64 --foreign --variant=minbase \
		--include=python3,libgomp1,libstdc++6,ca-certificates bookworm "$root" \
		"${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
	# Unpacked is enough for Python; to configure every package under QEMU would take minutes.
	for package in "$root"/var/cache/apt/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
	done
	# From 2.10 on, PyPI's PyTorch for aarch64 brings CUDA. Its requirements are listed, because pip
	# would choose them for the machine that it runs on.
	install numpy scipy mpmath hypothesis pytest packaging entmax jax
	install --no-deps "torch<2.10" filelock fsspec jinja2 markupsafe networkx sympy typing-extensions
	touch "$root/.ready"
fi

rm -rf "$packages"/kofn* "$packages/bin"
install --no-deps "$wheel"
mkdir -p "$root/usr/local/bin"
sed '1s|.*|#!/usr/bin/python3|' "$packages/bin/kofn" >"$root/usr/local/bin/kofn" # in place of pip's Python
chmod +x "$root/usr/local/bin/kofn"

arguments=("$@")
if [ ${#arguments[@]} -eq 0 ]; then
	arguments=(tests/kernels/test_kernels.py tests/maps/test_maps_accuracy.py tests/maps/test_maps_edges.py -k "not jax")
fi
exec unshare --user --map-root-user --mount --pid --fork --kill-child "$0" --inside "${arguments[@]}"
