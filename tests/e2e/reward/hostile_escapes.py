"""What a hostile program is, and those that try to get out of the sandbox or to keep something of it."""

from dataclasses import dataclass

ERROR = ("runtime_error",)
ANY_ERROR = ("runtime_error", "time_out", "memory_limit", "output_limit")
TIME_OUT = ("time_out",)
OUTPUT_LIMIT = ("output_limit",)
WRONG = ("fail",)  # it runs to its end, and prints nothing that it should not


@dataclass(slots=True, kw_only=True)
class Hostile:
    """One program, run on standard input against the expected output `EXPECTED-7391`."""

    name: str
    code: str
    outcomes: tuple[str, ...]


def _attempt(name: str, body: str, *, imports: str = "os") -> Hostile:
    """A program that says so if its body succeeds, and nothing if the body raises."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    refused = "(OSError, KeyError, AttributeError)"
    code = f"import {imports}\ntry:\n{lines}\n    print('escaped')\nexcept {refused} as e: print(e)"
    return Hostile(name=name, code=code, outcomes=WRONG)


def _raw_call(name: str, number: int, *arguments: int) -> Hostile:
    words = ", ".join(map(str, (number, *arguments)))
    return Hostile(
        name=name,
        code=f"import ctypes\nif ctypes.CDLL(None).syscall({words}) >= 0: print('escaped')",
        outcomes=WRONG,
    )


ESCAPES = [
    _attempt("daemon", "os.fork() or os.setsid()"),
    _attempt("passwd", "os.open('/etc/passwd', os.O_RDONLY)"),
    _attempt("shadow", "os.open('/etc/shadow', os.O_RDONLY)"),
    _attempt("own_environ", "open('/proc/self/environ').read()"),
    _attempt("parents_environ", "open(f'/proc/{os.getppid()}/environ').read()"),
    _attempt("own_memory", "open('/proc/self/mem', 'rb')"),
    _attempt("parents_memory", "open(f'/proc/{os.getppid()}/mem', 'rb')"),
    _attempt("secret", "os.environ['REWARD_TEST_SECRET']"),
    *(
        _attempt(f"socket_{name}", f"socket.socket({arguments})", imports="socket")
        for name, arguments in {
            "tcp": "socket.AF_INET",
            "tcp6": "socket.AF_INET6",
            "udp": "socket.AF_INET, socket.SOCK_DGRAM",
            "unix": "socket.AF_UNIX",
            "vsock": "socket.AF_VSOCK",
            "netlink": "socket.AF_NETLINK, socket.SOCK_RAW",
            "packet": "socket.AF_PACKET, socket.SOCK_RAW",
        }.items()
    ),
    _attempt("datagram_pair", "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", imports="socket"),
    _attempt("packet_pair", "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)", imports="socket"),
    _attempt("send_descriptors", "pair = socket.socketpair()\nsocket.send_fds(pair[0], [b'x'], [0])", imports="socket"),
    _attempt(
        "socket_buffer",
        "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)",
        imports="socket",
    ),
    _attempt("pipe_buffer", "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)", imports="os, fcntl"),
    _attempt("kill_parent", "os.kill(os.getppid(), 9)"),
    _attempt("kill_all", "os.kill(-1, 9)"),
    _attempt("kill_init", "os.kill(1, 9)"),
    _attempt("signal_parent_by_pidfd", "os.pidfd_open(os.getppid())"),
    _attempt("limit_parent", "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))", imports="os, resource"),
    _attempt("signal_owner", "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())", imports="os, fcntl"),
    _attempt("signal_owner_ex", "fcntl.fcntl(0, 15, struct.pack('ii', 1, os.getppid()))", imports="os, fcntl, struct"),
    _attempt("signal_group", "fcntl.ioctl(0, 0x8902, struct.pack('i', os.getppid()))", imports="os, fcntl, struct"),
    _attempt("lease", "fcntl.fcntl(0, fcntl.F_SETLEASE, fcntl.F_WRLCK)", imports="fcntl"),
    _attempt("directory_notes", "fcntl.fcntl(os.open('.', os.O_RDONLY), fcntl.F_NOTIFY, 15)", imports="os, fcntl"),
    _attempt("subprocess", "subprocess.run(['/bin/true'])", imports="subprocess"),
    _attempt("exec", "os.execv('/bin/true', ['true'])"),
    Hostile(name="shell", code="import os\nif os.system('true') == 0: print('escaped')", outcomes=WRONG),
    Hostile(
        name="multiprocessing",
        code="import multiprocessing as m\np = m.Process(target=print, args=('escaped',))\np.start()\np.join()",
        outcomes=ERROR,
    ),
    _attempt("symlink", "os.symlink('/etc/passwd', 'x')"),
    _attempt("hard_link", "os.link('/etc/passwd', 'x')"),
    _attempt("device", "os.mknod('x', 0o60600, 0x700)"),
    _attempt("write_outside", "open('/tmp/reward-test-escape', 'w')"),
    _attempt("write_above", "open('../escape', 'w')"),
    _attempt("pth", "open(os.path.join(os.path.dirname(os.__file__), 'site-packages', 'x.pth'), 'w')"),
    Hostile(
        name="raise_limit",
        code="import resource\ntry: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "except ValueError: pass\nelse: print('escaped')",
        outcomes=WRONG,
    ),
    Hostile(
        name="setuid_root",
        code="import os\ntry: os.setuid(0)\nexcept OSError: pass\nif os.getuid() == 0: print('escaped')",
        outcomes=WRONG,
    ),
    _attempt("list_root", "os.listdir('/')"),
    _attempt("list_other_scratch", "os.listdir('..')"),
    _attempt("packages", "open(os.path.join(os.path.dirname(os.__file__), 'site-packages', 'README.txt'))"),
    Hostile(
        name="packages_by_descriptor",
        code="import os\nfor fd in range(3, 64):\n"
        "    try: os.open('site-packages/README.txt', os.O_RDONLY, dir_fd=fd)\n"
        "    except OSError: pass\n    else: print('escaped')",
        outcomes=WRONG,
    ),
    _attempt("kernel_log", "open('/dev/kmsg')"),
    _attempt("shared_memory", "open('/dev/shm/x', 'w')"),
    _attempt("chmod_scratch", "os.chmod('.', 0)"),
    _attempt("make_folder", "os.mkdir('x')"),
    _attempt("anonymous_shared_memory", "mmap.mmap(-1, 4096)", imports="os, mmap"),
    _attempt("shared_memory_of_a_device", "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)", imports="os, mmap"),
    _attempt("file_without_name", "os.open('.', os.O_TMPFILE | os.O_RDWR)"),
    _attempt("truncate_by_reading", "os.open(os.__file__, os.O_RDONLY | os.O_TRUNC)"),
    _attempt("open_without_access", "os.open('/dev/full', 3)"),
    Hostile(
        name="keep_size",
        code="import ctypes, os\nfd = os.open('f', os.O_RDWR | os.O_CREAT)\n"
        "if ctypes.CDLL(None).fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(1 << 30)) == 0: print('escaped')",
        outcomes=WRONG,
    ),
    _raw_call("raw_outlive_parent", 157, 1, 0, 0, 0, 0),
    _raw_call("raw_sync", 162),
    _raw_call("raw_own_descriptors", 436, 3, 0xFFFFFFFF, 2),
    _raw_call("raw_thread_with_own_descriptors", 56, 0x3D0B00, 0, 0, 0, 0),
    _raw_call("raw_fork", 57),
    _raw_call("raw_clone", 56, 17, 0, 0, 0, 0),
    _raw_call("raw_clone3", 435, 0, 0),
    _raw_call("raw_unshare", 272, 0x10000000),
    _raw_call("raw_io_uring", 425, 8, 0),
    _raw_call("raw_shmget", 29, 0, 4096, 0o1600),
    _raw_call("raw_bpf", 321, 0, 0, 0),
    _raw_call("raw_memfd", 319, 0, 0),
    _raw_call("raw_ptrace", 101, 0, 0, 0, 0),
    _raw_call("raw_keyctl", 250, 0, -3, 1),
    _raw_call("raw_perf", 298, 0, 0, -1, -1, 0),
    _raw_call("raw_unknown", 600),
    Hostile(
        name="raw_x32_getpid",
        code="import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)\nprint('escaped')",
        outcomes=ERROR,
    ),
]
