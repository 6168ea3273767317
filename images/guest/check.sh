#!/bin/sh
# Checks the machine code of the guest: check.sh ELF
#
# Ring 0 (.kernel.text) has no floating point, SSE or other instruction that a KVM which emulates ring 0
# cannot run, and never leaves its own text but for the memory functions: so it cannot panic, and cannot
# run into code that was compiled for ring 3. Tail calls are jumps. What tracing needs is there.
set -eu
. "$(dirname "$0")/../plain"
elf=$1
bad=0

complain() {
    echo "guest: $1" >&2
    bad=1
}

kernel=$(objdump -d --no-show-raw-insn --section=.kernel.text "$elf")

# The one exception are the moves that save and restore a thread's xmm registers.
found=$(echo "$kernel" | awk '
    /^[0-9a-f]+ <.*>:$/ { name = $2; next }
    name == "" { next }
    /%[xyz]mm|%mm[0-7]|%st/ && !(name ~ /^<xmm_(save|restore)>:$/ && $2 == "movups") { print name, $0 }
    $2 ~ /^(f[a-z0-9]+|[lms]fence|cmpxchg16b|xgetbv|xsave.*|xrstor.*|popcnt|ldmxcsr|stmxcsr|emms)$/ { print name, $0 }
')
[ -z "$found" ] || complain "instructions that ring 0 must not have:
$found"

found=$(echo "$kernel" | awk '
    /^[0-9a-f]+ <.*>:$/ { name = $2; next }
    $2 ~ /^(call|j[a-z]+)$/ && $3 ~ /^[0-9a-f]+$/ {
        if ($3 ~ /^ffffffff81[01]/) next
        if ($4 ~ /^<(memcpy|memmove|memset|memcmp|bcmp)>$/) next
        print name, $0
    }
')
[ -z "$found" ] || complain "ring 0 calls code that is not its own:
$found"

found=$(objdump -d --no-show-raw-insn --section=.text "$elf" | awk '
    /^[0-9a-f]+ <.*>:$/ { name = $2; next }
    name ~ /^<[a-z_]*tail_(calls_)?[a-z]+>:$/ && $2 == "call" && $0 !~ /<(mcount|__fentry__|returns_at_once)>/ { print name, $0 }
')
[ -z "$found" ] || complain "tail calls that are calls:
$found"

# Whoever switches lock prefixes off must know of all of them. Implied locks (xchg) have no prefix.
# One is for what is shared with somebody outside, who is there on a single vCPU, too.
prefixes=$(objdump -d --no-show-raw-insn "$elf" | awk '/^[0-9a-f]+ </ { own = !/<text_replace>:/ } own' | grep -c '[[:space:]]lock ')
listed=$((0x$(objdump -h "$elf" | awk '$2 == ".smp_locks" { print $3 }') / 4))
[ "$prefixes" = "$listed" ] || complain "$prefixes locked instructions, $listed of them in .smp_locks"

symbols=$(nm "$elf")
for name in workloads_ready kernel_call calls_leaf; do
    echo "$symbols" | grep -q " T $name\$" || complain "no symbol $name"
done

exit $bad
