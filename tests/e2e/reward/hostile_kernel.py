"""Hostile programs that use lesser known ways of the kernel: threads without a leader, odd streams, names and limits.

Each is run against the expected output `EXPECTED-7391`, and prints `escaped` only where it got what it was after.
"""

from hostile_escapes import ERROR, OUTPUT_LIMIT, TIME_OUT, WRONG

_LEAVE = "import ctypes, hashlib, os, signal, threading, time\nleave = lambda: ctypes.CDLL(None).syscall(60, 0)\n"
# The process lives on without its first thread, which is the one that the kernel tells of its parent's death.
LEADERLESS = {
    "spin": (_LEAVE + "threading.Thread(target=lambda: all(True for _ in iter(int, 1))).start()\nleave()", TIME_OUT),
    "sleep": (_LEAVE + "threading.Thread(target=time.sleep, args=(99,)).start()\nleave()", TIME_OUT),
    "flood": (
        _LEAVE + "threading.Thread(target=lambda: [os.write(1, b'x' * 65536) for _ in iter(int, 1)]).start()\nleave()",
        (*OUTPUT_LIMIT, *TIME_OUT),
    ),
    "files": (
        _LEAVE + "def work():\n    for n in range(10**7): open(str(n), 'w').close()\n"
        "threading.Thread(target=work).start()\nleave()",
        (*OUTPUT_LIMIT, *TIME_OUT, *ERROR, *WRONG),  # an error in a thread is no end of the process
    ),
    "busy": (
        _LEAVE + "threading.stack_size(65536)\ndef work():\n"
        "    while True: hashlib.pbkdf2_hmac('sha256', b'x' * 8, b'y' * 8, 20_000)\n"
        "for _ in range(100): threading.Thread(target=work).start()\nleave()",
        TIME_OUT,
    ),
    "bad_end": (
        _LEAVE + "threading.Thread(target=lambda: (time.sleep(0.1), os._exit(3))).start()\nleave()",
        ERROR,
    ),
}

_STREAMS = {
    "packets": (
        """
        import fcntl, os
        fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)
        while True: os.write(1, b"x")
        """,
        (*TIME_OUT, *OUTPUT_LIMIT),
    ),
    "own_output_read_back": (
        """
        import os
        reader = os.open("/dev/stdout", os.O_RDONLY | os.O_NONBLOCK)
        while True: os.write(1, b"x" * 4096), os.read(reader, 4096)
        """,
        (*TIME_OUT, *ERROR, *OUTPUT_LIMIT),
    ),
    "output_filled_by_its_reader_end": (
        "import os\nfd = os.open('/dev/stdout', os.O_RDWR)\nwhile True: os.write(fd, b'x' * 65536)",
        (*TIME_OUT, *OUTPUT_LIMIT),
    ),
    "long_error_output": ("import os\nos.ftruncate(2, 16 << 20)\nraise KeyError", ERROR),
    "error_output_beyond_its_limit": (
        "import os\ntry: os.ftruncate(2, 17 << 20)\nexcept OSError: pass\nelse: print('escaped')",
        WRONG,
    ),
    "seals_leases_notices": (
        """
        import fcntl, os
        for fd in (0, 1, 2):
            for command, argument in ((1033, 15), (1024, 0), (1026, 1), (1031, 1 << 20), (10, 9), (8, os.getppid())):
                try: fcntl.fcntl(fd, command, argument)
                except OSError: continue
                print("escaped", fd, command)
        """,
        WRONG,
    ),
    "descriptors": (
        """
        import os, stat
        for fd in range(1024):
            try: name = os.readlink(f"/proc/self/fd/{fd}")
            except OSError: continue
            if fd > 2 and not (stat.S_ISDIR(os.fstat(fd).st_mode) and os.__file__.startswith(name)):
                print("escaped", fd, name)
        """,
        WRONG,
    ),
}

_FILES = {
    "odd_names": (
        r"""
        import os
        for name in (b"\xff\xfe", b"a\nb", b"x" * 255, b" ", b"-rf", b"\\"): open(name, "w").close()
        for n in range(5): os.open(f"closed{n}", os.O_CREAT | os.O_RDWR, 0)
        """,
        WRONG,
    ),
    "scratch_itself": (
        """
        import os
        here = os.getcwd()
        for action in (
            lambda: os.rmdir(here), lambda: os.rename(here, f"{here}x"), lambda: os.rename(here, "/tmp/x"),
            lambda: os.rename(".", "y"), lambda: os.unlink(here), lambda: os.open("..", os.O_RDONLY),
        ):
            try: action()
            except OSError: continue
            print("escaped")
        """,
        WRONG,
    ),
    "by_path_descriptors": (
        """
        import os
        for folder in ("/", "/etc", "/root", "/proc/self/root", "/proc/self/cwd/../..", f"/proc/{os.getppid()}"):
            try: fd = os.open(folder, os.O_PATH)
            except OSError: continue
            for action in (
                lambda: os.open("etc/passwd", 0, dir_fd=fd), lambda: os.open("passwd", 0, dir_fd=fd),
                lambda: os.listdir(fd), lambda: (os.fchdir(fd), os.listdir(".")), lambda: os.open("environ", 0),
                lambda: os.open(f"/proc/self/fd/{fd}", 0), lambda: os.open("x", os.O_CREAT | os.O_RDWR, dir_fd=fd),
            ):
                try: action()
                except OSError: continue
                print("escaped", folder)
        """,
        WRONG,
    ),
    "locks": (
        """
        import fcntl, os
        files = [os.open(str(n), os.O_RDWR | os.O_CREAT) for n in range(40)]
        for n in range(1 << 20, 0, -1):
            for fd in files: fcntl.lockf(fd, fcntl.LOCK_SH, 1, 2 * n)
        """,
        (*TIME_OUT, *ERROR),
    ),
}

_REFUSED = (
    "46 47 57 58 59 62 72 73 101 105 106 112 116 117 119 126 133 134 135 136 141 142 144 154 155 156 157 158 159 161 "
    "163 164 165 166 167 168 169 170 172 173 175 176 179 200 203 206 209 212 222 234 235 237 238 239 246 248 249 250 "
    "251 256 259 260 261 265 266 268 272 275 276 278 279 280 288 298 299 300 303 304 305 307 308 310 311 312 313 314 "
    "315 317 319 320 321 322 323 325 329 330 331 424 425 426 427 428 429 430 431 432 433 434 438 440 442 443 444 445 "
    "446 447 448 450 454 460"
)
_SELF = {
    "old_calls": (
        """
        import ctypes, mmap
        page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
        page[:8] = bytes.fromhex("b814000000cd80c3")  # getpid as 32 bit programs call it
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        print("escaped")
        """,
        ERROR,
    ),
    "refused_calls": (
        f"""
        import ctypes
        call = ctypes.CDLL(None).syscall
        for number in map(int, "{_REFUSED}".split()):
            if call(number, -1, -1, -1, -1, -1, -1) >= 0: print("escaped", number)
        """,
        WRONG,
    ),
    "no_limits_left": (
        """
        import resource
        for kind in range(16):
            try: resource.setrlimit(kind, (0, 0))
            except (OSError, ValueError): pass
        """,
        (*WRONG, *ERROR, "memory_limit"),  # without memory it ends as it can
    ),
    "names_of_threads": (
        """
        import ctypes, threading, time
        name = lambda text: ctypes.CDLL(None).prctl(15, text)
        name(b"a) Z 1 1 ) D (")
        work = lambda: (name(b") Z ) (\\n"), time.sleep(0.2))
        for _ in range(20): threading.Thread(target=work).start()
        """,
        WRONG,
    ),
    "stopped_again": (
        """
        import os, signal, threading, time
        signal.signal(signal.SIGCONT, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
        for _ in range(4): threading.Thread(target=lambda: all(True for _ in iter(int, 1))).start()
        while True: os.kill(os.getpid(), signal.SIGSTOP)
        """,
        TIME_OUT,
    ),
    "queued_signals": (
        """
        import os, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))
        while True: os.kill(os.getpid(), 40)
        """,
        (*TIME_OUT, *ERROR),
    ),
    "own_group_killed": ("import os\nos.kill(0, 9)", ERROR),
    "size_signal": (
        "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nopen('f', 'wb').write(bytes(17 << 20))",
        ERROR,
    ),
    "barriers": ("import ctypes\nwhile True: ctypes.CDLL(None).syscall(324, 1, 0, 0)", TIME_OUT),
    "short_threads": (
        """
        import _thread
        while True:
            try: _thread.start_new_thread(int, ())
            except RuntimeError: pass
        """,
        (*TIME_OUT, *ERROR, "memory_limit"),
    ),
    "long_step_at_the_end": (
        "class A:\n    def __del__(self): int('9' * 10**6)\nimport sys\nsys.set_int_max_str_digits(0)\na = A()",
        TIME_OUT,
    ),
}

KERNEL_WAYS = {
    f"{group}-{name}": row
    for group, table in (("leaderless", LEADERLESS), ("streams", _STREAMS), ("files", _FILES), ("self", _SELF))
    for name, row in table.items()
}

# What the user, the rights and the namespaces of programs have no part in; the other modes need not try it again.
SAME_IN_EVERY_MODE = {
    "streams-packets",
    "streams-long_error_output",
    "streams-error_output_beyond_its_limit",
    "self-old_calls",
    "self-names_of_threads",
    "self-size_signal",
    "self-barriers",
    "self-long_step_at_the_end",
}
