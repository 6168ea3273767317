#!/usr/bin/env bash
# A stock distribution Linux as a guest: images/out/linux/vmlinuz, the kernel of the box as its package
# has it, and images/out/linux/initrd, a busybox and a few programs (see init).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/images/out/linux

"$root/images/box/prepare"
mkdir -p "$out"
ln -sfn ../../cache/box/vmlinuz "$out/vmlinuz"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage"/{bin,dev,proc,sys,tmp}
cp "$(command -v busybox)" "$stage/bin/busybox"
cp "$here/init" "$stage/init"
chmod 755 "$stage/init"
for program in syscalls opens leave; do
    gcc -static -O2 -Wall -Werror -o "$stage/bin/$program" "$here/$program.c"
done
# A module to load and unload, unpacked: insmod of busybox takes no other.
module=$(find "$root/images/cache/box/kernel" -name 'binfmt_misc.ko*' | head -n 1)
mkdir -p "$stage/modules"
case $module in
    '') echo "images/linux/build.sh: the kernel package has no binfmt_misc module" >&2; exit 1 ;;
    *.xz) xz -dc "$module" >"$stage/modules/binfmt_misc.ko" ;;
    *.zst) zstd -qdc "$module" >"$stage/modules/binfmt_misc.ko" ;;
    *) cp "$module" "$stage/modules/binfmt_misc.ko" ;;
esac
# Not compressed: unpacking costs the emulated machine more than the bytes do.
(cd "$stage" && find . | cpio --create --format=newc --owner=0:0 --quiet) >"$out/initrd.new"
mv "$out/initrd.new" "$out/initrd"
echo "images/out/linux/vmlinuz images/out/linux/initrd"
