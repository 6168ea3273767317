"""A VMM of one vCPU that counts, and of one slot of memory, of which KVM notes the pages that are written. Says for each line that it
reads whether it still does, once the vCPU has counted on. Between two lines that say so it has KVM begin and end noting them, over and over, and says how often that came
to nothing. With an argument KVM notes the pages in a ring of each vCPU's instead."""
import ctypes
import fcntl
import mmap
import os
import struct
import sys
import threading
import time

CREATE_VM, CREATE_VCPU, RUN, GET_STATISTICS = 0xAE01, 0xAE41, 0xAE80, 0xAECE
SET_MEMORY, GET_LOG, ENABLE = 0x4020AE46, 0x4010AE42, 0x4068AEA3
GET_SREGS, SET_SREGS, SET_REGS = 0x8138AE83, 0x4138AE84, 0x4090AE82
SLOT, LOGS, BYTES = 3, 1, 64 << 20
RING, RING_BYTES = 192, 65536
CODE, COUNT = 0x200000, 0x400000

memory = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
vm = fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR), CREATE_VM, 0)
# What is no other machine: a duplicate, and its statistics, where this host has them.
again = os.dup(vm)
try:
    statistics = fcntl.ioctl(vm, GET_STATISTICS, 0)
except OSError:
    pass
if len(sys.argv) > 1:
    fcntl.ioctl(vm, ENABLE, struct.pack("IIQ88x", RING, 0, RING_BYTES))
fcntl.ioctl(vm, SET_MEMORY, struct.pack("IIQQQ", SLOT, LOGS, 0, BYTES, address))

# Page tables that map the first 2 MiB pages where they are, and `inc qword [COUNT]` over and over; where what it writes would fill a
# ring that nobody empties, an instruction that jumps to itself.
is_ring = len(sys.argv) > 1
for at, entry in [(0x1000, 0x2003), (0x2000, 0x3003)] + [(0x3000 + 8 * page, page << 21 | 0x83) for page in range(32)]:
    memory[at : at + 8] = struct.pack("Q", entry)
text = b"\xeb\xfe" if is_ring else b"\x48\xff\x04\x25" + struct.pack("i", COUNT) + b"\xeb\xf6"
memory[CODE : CODE + len(text)] = text

vcpu = fcntl.ioctl(vm, CREATE_VCPU, 0)
run = mmap.mmap(vcpu, 4096)
registers = bytearray(312)
fcntl.ioctl(vcpu, GET_SREGS, registers)
CODE_SEGMENT = (0, 0xFFFFFFFF, 8, 11, 1, 0, 0, 1, 1, 1, 0, 0)
struct.pack_into("QIHBBBBBBBBB", registers, 0, *CODE_SEGMENT)
# CR0.PE and PG, CR3, CR4.PAE, EFER.LME and LMA.
for at, value in [(224, 1 | 1 << 31), (240, 0x1000), (248, 1 << 5), (264, 1 << 8 | 1 << 10)]:
    struct.pack_into("Q", registers, at, value)
fcntl.ioctl(vcpu, SET_SREGS, bytes(registers))
fcntl.ioctl(vcpu, SET_REGS, struct.pack("18Q", *[0] * 16, CODE, 2))


def spin():
    while True:
        try:
            fcntl.ioctl(vcpu, RUN, 0)
        except InterruptedError:
            pass
        if run[8] not in (0, 10):
            print(f"the guest has ended by exit {run[8]}", file=sys.stderr, flush=True)
            os._exit(1)


def counted():
    return struct.unpack_from("Q", memory, COUNT)[0]


def goes_on():
    before = counted()
    while counted() == before:
        time.sleep(0.001)


threading.Thread(target=spin, daemon=True).start()
if not is_ring:
    goes_on()
bits = (ctypes.c_char * (BYTES // 4096 // 8))()
print("spins", flush=True)


def notes():
    fcntl.ioctl(vm, GET_LOG, struct.pack("IIQ", SLOT, 0, ctypes.addressof(bits)))


def is_noted():
    try:
        notes()
        return True
    except OSError:
        return False


def toggle(end, wrong):
    while not end.is_set():
        for flags in (LOGS, 0):
            fcntl.ioctl(vm, SET_MEMORY, struct.pack("IIQQQ", SLOT, flags, 0, BYTES, address))
            wrong.append(is_noted() != bool(flags))


end, wrong, toggles = threading.Event(), [], None
for line in sys.stdin:
    if line.strip() == "toggle":
        toggles = threading.Thread(target=toggle, args=[end, wrong])
        toggles.start()
        print("toggles", flush=True)
    elif toggles:
        end.set()
        toggles.join()
        toggles = None
        goes_on()
        print(f"{sum(wrong)} wrong", flush=True)
    else:
        goes_on()
        try:
            notes()
            print("notes", flush=True)
        except OSError as error:
            print(error, flush=True)
