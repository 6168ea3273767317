"""Runs a command in which creating anonymous files ends the process: what a VMM with a filter for its system calls has."""
import ctypes
import os
import struct
import sys

NO_NEW_PRIVILEGES, SECCOMP, BY_PROGRAM = 38, 22, 2
LOAD_NUMBER, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
KILL_PROCESS, ALLOW = 0x80000000, 0x7FFF0000
MEMFD_CREATE = 319


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]


steps = [
    (LOAD_NUMBER, 0, 0, 0),
    (IF_EQUAL, 0, 1, MEMFD_CREATE),
    (RETURN, 0, 0, KILL_PROCESS),
    (RETURN, 0, 0, ALLOW),
]
packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = Program(len(steps), ctypes.addressof(packed))
libc = ctypes.CDLL(None)
if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, BY_PROGRAM, ctypes.byref(program), 0, 0):
    sys.exit("no filter could be set")
os.execvp(sys.argv[1], sys.argv[1:])
