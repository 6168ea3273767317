#!/usr/bin/env bash
# A stock distribution Linux as a guest: images/out/linux/vmlinuz, the kernel of the box as its package
# has it, and images/out/linux/initrd, a busybox and a few programs (see init). images/out/linux/initrd-modules
# is the same with large modules, in /modules/large, whose names say in which order they can be loaded;
# images/out/linux/initrd-kexec is the same with a kernel and an initrd for it, in /kexec.
set -euo pipefail
. "$(dirname "$0")/../plain"

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
for program in syscalls opens costs leave kexec keys fentry hostile; do
    gcc -static -O2 -Wall -Werror -o "$stage/bin/$program" "$here/$program.c"
done

# Puts module $1 of the kernel package at $2, unpacked: insmod of busybox takes no other.
unpack() {
    local module
    # A name is spelled with _ inside of modules, and often with - in those of files.
    module=$(find "$root/images/cache/box/kernel" -name "${1//[-_]/[-_]}.ko*" | head -n 1)
    case $module in
        '') echo "images/linux/build.sh: the kernel package has no module $1" >&2; exit 1 ;;
        *.xz) xz -dc "$module" >"$2" ;;
        *.zst) zstd -qdc "$module" >"$2" ;;
        *) cp "$module" "$2" ;;
    esac
}

# Puts module $1, and before it all that it needs, into the folder of large modules.
number=100
declare -A placed=()
place() {
    local needs need file
    [ -z "${placed[$1]:-}" ] || return 0
    placed[$1]=yes
    file=$stage/modules/large/.unpacked.$1
    unpack "$1" "$file"
    needs=$(tr '\0' '\n' <"$file" | sed -n 's/^depends=//p')
    for need in ${needs//,/ }; do
        place "$need"
    done
    strip --strip-debug "$file"
    mv "$file" "$stage/modules/large/$number-$1.ko"
    number=$((number + 1))
}

# A module to load and unload.
mkdir -p "$stage/modules"
unpack binfmt_misc "$stage/modules/binfmt_misc.ko"

# Builds a module of ours, without the kernel's headers: what `struct module` is to this kernel a module of its own says.
# There it is a section, with the module's name in it, and with the address of the module's start in a place that a
# relocation names.
build_hostile() {
    local pattern=$stage/modules/binfmt_misc.ko this bytes name start vermagic
    this=$(mktemp)
    objcopy -O binary --only-section=.gnu.linkonce.this_module "$pattern" "$this"
    bytes=$(stat -c %s "$this")
    name=$(grep -obUa -m 1 binfmt_misc "$this" | head -n 1 | cut -d : -f 1)
    rm "$this"
    start=$(readelf -rW "$pattern" | awk '/^Relocation/ {ours = /gnu.linkonce.this_module/} ours && $5 == "init_module" {print $1}')
    vermagic=$(tr '\0' '\n' <"$pattern" | sed -n 's/^vermagic=//p')
    [ "$bytes" -gt 0 ] && [ -n "$name" ] && [ -n "$start" ] && [ -n "$vermagic" ] || {
        echo "images/linux/build.sh: $pattern does not say what struct module is" >&2
        exit 1
    }
    gcc -c -O2 -Wall -Werror -ffreestanding -mcmodel=kernel -fno-pic -fno-pie -mno-red-zone -mgeneral-regs-only \
        -fno-stack-protector -fcf-protection=none -fno-asynchronous-unwind-tables \
        "-DMODULE_BYTES=$bytes" "-DMODULE_NAME_AT=$name" "-DMODULE_START_AT=0x$start" \
        "-DMODULE_VERMAGIC=\"$vermagic\"" -o "$stage/modules/hostile.ko" "$here/hostile_module.c"
}
build_hostile

# Puts everything into an archive, not compressed: unpacking costs the emulated machine more than the bytes do.
pack() {
    (cd "$stage" && find . | cpio --create --format=newc --owner=0:0 --quiet) >"$out/$1.new"
    mv "$out/$1.new" "$out/$1"
}
pack initrd
mkdir "$stage/modules/large"
for module in xfs btrfs cifs nfsd ceph nfs sctp nf_tables openvswitch udf dm_crypt overlay; do
    place "$module"
done
pack initrd-modules
rm -r "$stage/modules/large"
mkdir "$stage/kexec"
cp -L "$out/vmlinuz" "$out/initrd" "$stage/kexec"
pack initrd-kexec
echo images/out/linux/{vmlinuz,initrd,initrd-modules,initrd-kexec}
