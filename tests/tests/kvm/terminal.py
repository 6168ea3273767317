"""A shell with job control, as far as Ctrl-Z and fg need one: argv is what it runs, on a terminal of its own."""
import fcntl, os, pty, signal, sys, termios, time

DEADLINE = time.monotonic() + 120
master, terminal = pty.openpty()


def echoes():
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


def until(what, true):
    while not true():
        assert time.monotonic() < DEADLINE, what
        time.sleep(0.01)


def shell():
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        for fd in range(3):
            os.dup2(terminal, fd)
        os.execv(sys.argv[1], sys.argv[1:])
    printed = b""
    while b"workload spin" not in printed:
        printed += os.read(master, 4096)
    until("character by character", lambda: not echoes())
    os.write(master, b"\x1a")
    _, status = os.waitpid(job, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status
    assert echoes(), "stopped, and the terminal is without echo"
    os.tcsetpgrp(terminal, os.getpgrp())
    os.tcsetpgrp(terminal, job)
    os.killpg(job, signal.SIGCONT)
    until("character by character again", lambda: not echoes())
    os.write(master, b"\x03")
    _, status = os.waitpid(job, os.WUNTRACED)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 104, status
    assert echoes(), "ended, and the terminal is without echo"


leader = os.fork()
if leader == 0:
    try:
        shell()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1]))
