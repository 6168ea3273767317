"""A shell with job control, as far as Ctrl-Z, fg and bg need one: argv is which of them, how long anything may take, in seconds, and what it runs,
on a terminal of its own."""
import fcntl, os, pty, select, signal, subprocess, sys, termios, time

which, patience, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
DEADLINE = time.monotonic() + patience
master, terminal = pty.openpty()


def echoes():
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


def until(what, true):
    while not true():
        assert time.monotonic() < DEADLINE, what
        time.sleep(0.01)


def start(in_charge=True):
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        if in_charge:
            os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        for fd in range(3):
            os.dup2(terminal, fd)
        os.execv(command[0], command)
    printed = b""
    while b"workload spin" not in printed:
        printed += os.read(master, 4096)
    if in_charge:
        until("character by character", lambda: not echoes())
    return job


def stop(job):
    os.write(master, b"\x1a")
    _, status = os.waitpid(job, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status
    assert echoes(), "stopped, and the terminal is without echo"
    os.tcsetpgrp(terminal, os.getpgrp())


def end(job, ended):
    _, status = os.waitpid(job, os.WUNTRACED)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == ended, status
    assert echoes(), "ended, and the terminal is without echo"


def fg(job):
    stop(job)
    os.tcsetpgrp(terminal, job)
    os.killpg(job, signal.SIGCONT)
    until("character by character again", lambda: not echoes())
    os.write(master, b"\x03")
    end(job, 104)


def answers():
    control = command[command.index("--control") + 1]
    ctl = [command[0], "ctl", "--control", control, "status"]
    said = subprocess.run(ctl, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=patience)
    assert said.returncode == 0, said


def bg(job):
    stop(job)
    os.killpg(job, signal.SIGCONT)
    os.write(master, b"for the shell\n")
    # By then whoever waits for it has been woken, and who answers has seen to that.
    assert select.select([terminal], [], [], patience)[0], "nothing comes"
    answers()
    assert os.waitpid(job, os.WUNTRACED | os.WNOHANG) == (0, 0), "stopped by what is typed"
    assert os.read(terminal, 100) == b"for the shell\n"
    # A shell says nothing to who runs already.
    os.tcsetpgrp(terminal, job)
    until("character by character after a while", lambda: not echoes())
    os.write(master, b"q")
    end(job, 0)
    job = start()
    stop(job)
    os.killpg(job, signal.SIGCONT)
    answers()
    os.kill(job, signal.SIGTERM)
    end(job, 104)


def echo(is_on):
    mode = termios.tcgetattr(terminal)
    mode[3] = mode[3] | termios.ECHO if is_on else mode[3] & ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, mode)


def started(job_continues):
    # As a shell has it while somebody edits a line.
    echo(False)
    job = start(in_charge=False)
    os.write(master, b"for the shell\n")
    assert select.select([terminal], [], [], patience)[0], "nothing comes"
    answers()
    assert os.waitpid(job, os.WUNTRACED | os.WNOHANG) == (0, 0), "stopped by what is typed"
    assert os.read(terminal, 100) == b"for the shell\n"
    echo(True)
    os.tcsetpgrp(terminal, job)
    if job_continues:
        os.killpg(job, signal.SIGCONT)
    until("character by character in the foreground", lambda: not echoes())
    os.write(master, b"q")
    end(job, 0)
    os.tcsetpgrp(terminal, os.getpgrp())


def started_in_background():
    started(True)
    # A shell says nothing to who runs already.
    started(False)


def shell():
    os.setsid()
    # What it waits for without a deadline has this one.
    signal.alarm(patience)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if which == "started":
        return started_in_background()
    {"fg": fg, "bg": bg}[which](start())


leader = os.fork()
if leader == 0:
    try:
        shell()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1]))
