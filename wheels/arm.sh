#!/usr/bin/env bash
# Try the wheel for aarch64 on a machine of another kind: Debian for aarch64 in a folder, run by QEMU.
#
#   sudo wheels/arm.sh WHEEL [PYTEST ARGUMENTS…]
#
# It needs root, and Debian's packages qemu-user-static and debootstrap. The folder is build/arm; it
# is kept for the next time. Mounts, and the registration of QEMU, are undone at the end, also after
# an interrupt.
set -euo pipefail

if [ $# -lt 1 ] || [ ! -f "$1" ]; then
	echo "usage: $0 WHEEL [PYTEST ARGUMENTS…]; make wheels makes dist/kofn-…-aarch64.whl" >&2
	exit 2
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "$0: needs root, for chroot and mounts" >&2
	exit 2
fi
for command in debootstrap qemu-aarch64-static; do
	if ! command -v "$command" >/dev/null; then
		echo "$0: needs $command; install it with: apt-get install qemu-user-static debootstrap" >&2
		exit 2
	fi
done

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheel=$(realpath "$1")
shift
root=$checkout/build/arm/root
packages=$checkout/build/arm/packages
formats=/proc/sys/fs/binfmt_misc
mounted=()
registered=no
had_formats=yes

undo() {
	local i
	for ((i = ${#mounted[@]} - 1; i >= 0; i--)); do umount --lazy "${mounted[i]}" || true; done
	if [ "$registered" = yes ]; then echo -1 >$formats/kofn-aarch64 || true; fi
	if [ "$had_formats" = no ]; then umount $formats || true; fi
}
trap undo EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mount_at() { # TYPE SOURCE PLACE
	mkdir -p "$3"
	if [ "$1" = bind ]; then mount --bind "$2" "$3"; else mount -t "$1" "$2" "$3"; fi
	mounted+=("$3")
}

if [ ! -e $formats/register ]; then
	mount -t binfmt_misc none $formats
	had_formats=no
fi
if ! grep -qs aarch64 $formats/*aarch64* 2>/dev/null; then
	magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
	mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
	echo ":kofn-aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):FP" >$formats/register
	registered=yes
fi

if [ ! -e "$root/.ready" ]; then
	rm -rf "$root"
	mkdir -p "$root"
	mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
	debootstrap --arch=arm64 --foreign --variant=minbase \
		--include=python3,libgomp1,libstdc++6,ca-certificates bookworm "$root" "$mirror"
	chroot "$root" /debootstrap/debootstrap --second-stage
	touch "$root/.ready"
fi

# The host's pip takes packages for aarch64: under QEMU it would take minutes.
rm -rf "$packages"
tags=(--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64)
pip=("$checkout/.venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile
	--only-binary=:all: --python-version 3.11 --implementation cp "${tags[@]}" --target "$packages")
# Tests import PyTorch and JAX, too. From 2.10 on, PyPI's PyTorch for aarch64 brings CUDA.
"${pip[@]}" numpy array-api-compat scipy mpmath hypothesis pytest packaging "torch<2.10" jax
"${pip[@]}" --no-deps "$wheel"

mount_at proc proc "$root/proc"
mount_at bind /dev "$root/dev"
mount_at bind "$packages" "$root/packages"
mount_at bind "$checkout/tests" "$root/kofn/tests"
cp "$checkout/pyproject.toml" "$root/kofn/"
arguments=("$@")
if [ ${#arguments[@]} -eq 0 ]; then
	arguments=(tests/test_kernels.py tests/test_maps_accuracy.py tests/test_maps_edges.py)
fi
chroot "$root" /usr/bin/env PYTHONPATH=/packages PYTHONDONTWRITEBYTECODE=1 HOME=/tmp OMP_NUM_THREADS=1 \
	sh -c 'cd /kofn && python3 tests/release/smoke.py numpy -numba && python3 -m pytest -p no:cacheprovider "$@"' sh \
	"${arguments[@]}"
