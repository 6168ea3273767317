#!/bin/sh
# Builds small kernels that are neither the bundled guest nor a Linux: images/out/foreign/NAME.elf
#
#   prefix    its nops lie before each function as well as in it, after an endbr64
#   identity  stays on page tables that map 4 GiB to themselves: no entry near its text is free
#   raw       its sites are calls of __fentry__, which nobody has made nops
set -eu
. "$(dirname "$0")/../plain"
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../out/foreign
mkdir -p "$out"

build() { # NAME GIGABYTES OPTION...
    name=$1 gigabytes=$2
    shift 2
    gcc -O2 -Wall -Werror -ffreestanding -fno-pie -no-pie -static -nostdlib -mno-red-zone -mgeneral-regs-only \
        -fno-stack-protector -fno-asynchronous-unwind-tables -fno-optimize-sibling-calls -DGIGABYTES="$gigabytes" "$@" \
        -Wl,-T,"$here/link.ld" -Wl,--build-id=none -Wl,-z,noexecstack "$here/start.S" "$here/kernel.c" \
        -o "$out/$name.elf.new"
    mv "$out/$name.elf.new" "$out/$name.elf"
    echo "images/out/foreign/$name.elf"
}

build prefix 1 -fcf-protection=branch -fpatchable-function-entry=16,11
build identity 4 -fcf-protection=none -fpatchable-function-entry=5
build raw 1 -fcf-protection=none -pg -mfentry -mrecord-mcount -DRAW
