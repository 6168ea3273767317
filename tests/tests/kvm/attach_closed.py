"""A VMM of two vCPUs that call a function all the time, which writes their kernel to the file that is named first. Told to, it closes the second one, and opens the file
that is named second by the same number; or it has a thread of its begin a child, which begins when somebody writes to the pipe that is named third: until then nothing
stops that thread. Says for each other line that it reads whether the first one still goes on, and what is in that file."""
import ctypes
import fcntl
import mmap
import os
import struct
import sys
import threading

CREATE_VM, CREATE_VCPU, RUN = 0xAE01, 0xAE41, 0xAE80
SET_MEMORY, GET_SREGS, SET_SREGS, SET_REGS = 0x4020AE46, 0x8138AE83, 0x4138AE84, 0x4090AE82
BYTES, CODE, FUNCTION, COUNTS, STACKS = 64 << 20, 0x200000, 0x200010, 0x400000, 0x600000
kernel, other, pipe = sys.argv[1:]

# `call` over and over; a nop of five bytes, `inc qword [COUNTS + rbx * 8]`, `ret`.
text = b"\xe8" + struct.pack("i", FUNCTION - CODE - 5) + b"\xeb\xf9" + b"\xcc" * 9
text += b"\x0f\x1f\x44\x00\x00" + b"\x48\xff\x04\xdd" + struct.pack("i", COUNTS) + b"\xc3"

# An ELF file of one segment, with the list of the function's nops, and its name.
names = b"\0.text\0__patchable_function_entries\0.symtab\0.strtab\0"
strings = b"\0work\0"
symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, FUNCTION, len(text) - 16)
parts = [text, struct.pack("Q", FUNCTION), symbols, strings, names]
places = [0x1000 + 0x100 * number for number in range(len(parts))]
named = lambda name: names.index(b"\0" + name) + 1
sections = [bytes(64)]
for (name, kind, flags, at, link, info, entry), part, place in zip(
    [
        (b".text", 1, 6, CODE, 0, 0, 0),
        (b"__patchable_function_entries", 1, 0, 0, 0, 0, 8),
        (b".symtab", 2, 0, 0, 4, 1, 24),
        (b".strtab", 3, 0, 0, 0, 0, 0),
        (b".strtab", 3, 0, 0, 0, 0, 0),
    ],
    parts,
    places,
):
    sections.append(struct.pack("<IIQQQQIIQQ", named(name), kind, flags, at, place, len(part), link, info, 8, entry))
header = b"\x7fELF\x02\x01\x01" + bytes(9)
header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, CODE, 64, 0x800, 0, 64, 56, 1, 64, len(sections), len(parts))
segment = struct.pack("<IIQQQQQQ", 1, 5, places[0], CODE, CODE, len(text), len(text), 4096)
file = bytearray(0x2000)
for at, part in [(0, header), (64, segment), (0x800, b"".join(sections)), *zip(places, parts)]:
    file[at : at + len(part)] = part
with open(kernel, "wb") as written:
    written.write(file)

memory = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
vm = fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR), CREATE_VM, 0)
fcntl.ioctl(vm, SET_MEMORY, struct.pack("IIQQQ", 0, 0, 0, BYTES, address))
for at, entry in [(0x1000, 0x2003), (0x2000, 0x3003)] + [(0x3000 + 8 * page, page << 21 | 0x83) for page in range(32)]:
    memory[at : at + 8] = struct.pack("Q", entry)
memory[CODE : CODE + len(text)] = text


def make(number):
    vcpu = fcntl.ioctl(vm, CREATE_VCPU, number)
    registers = bytearray(312)
    fcntl.ioctl(vcpu, GET_SREGS, registers)
    struct.pack_into("QIHBBBBBBBBB", registers, 0, 0, 0xFFFFFFFF, 8, 11, 1, 0, 0, 1, 1, 1, 0, 0)
    # CR0.PE and PG, CR3, CR4.PAE, EFER.LME and LMA.
    for at, value in [(224, 1 | 1 << 31), (240, 0x1000), (248, 1 << 5), (264, 1 << 8 | 1 << 10)]:
        struct.pack_into("Q", registers, at, value)
    fcntl.ioctl(vcpu, SET_SREGS, bytes(registers))
    general = [0] * 16
    # RBX and RSP.
    general[1], general[6] = number, STACKS + (number << 16)
    fcntl.ioctl(vcpu, SET_REGS, struct.pack("18Q", *general, CODE, 2))
    return vcpu


def spin(vcpu):
    while True:
        try:
            fcntl.ioctl(vcpu, RUN, 0)
        except InterruptedError:
            pass
        except OSError:
            # It is closed.
            return


def count(vcpu):
    return struct.unpack_from("Q", memory, COUNTS + 8 * vcpu)[0]


def wait_for_child():
    # Python's own call would keep all its threads.
    libc, actions, child = ctypes.CDLL(None), ctypes.create_string_buffer(256), ctypes.c_int()
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, pipe.encode(), os.O_RDONLY, 0)
    arguments = (ctypes.c_char_p * 2)(b"true", None)
    libc.posix_spawn(ctypes.byref(child), b"/bin/true", actions, None, arguments, None)
    os.waitpid(child.value, 0)


def is_stuck():
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/stat") as stat:
            if ") D " in stat.read():
                return True
    return False


vcpus = [make(number) for number in range(2)]
for vcpu in vcpus:
    threading.Thread(target=spin, args=[vcpu], daemon=True).start()
while not (count(0) and count(1)):
    pass
print("spins", flush=True)
for line in sys.stdin:
    if line.strip() == "close":
        opened = os.open(other, os.O_RDWR | os.O_CREAT)
        os.write(opened, b"another file")
        os.dup2(opened, vcpus[1])
        print("closed", flush=True)
    elif line.strip() == "stick":
        os.mkfifo(pipe)
        threading.Thread(target=wait_for_child, daemon=True).start()
        while not is_stuck():
            pass
        print("is stuck", flush=True)
    else:
        before = count(0)
        while count(0) == before:
            pass
        with open(other) as now:
            print("goes on,", now.read(), flush=True)
