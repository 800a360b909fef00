"""What a hostile program is, and those that try to get out of the sandbox or to keep something of it."""

from typing import NamedTuple

ERROR = ("runtime_error",)
ANY_ERROR = ("runtime_error", "time_out", "memory_limit", "output_limit")
TIME_OUT = ("time_out",)
OUTPUT_LIMIT = ("output_limit",)
WRONG = ("fail",)  # it runs to its end, and prints nothing that it should not


class Hostile(NamedTuple):
    """One program, run on standard input against the expected output `EXPECTED-7391`."""

    name: str
    code: str
    outcomes: tuple[str, ...]


def _attempt(body: str) -> str:
    """A program that says so if its body succeeds, and nothing if the body raises."""
    lines = body.replace("\n", "\n    ")
    modules = "fcntl, mmap, os, resource, socket, struct, subprocess"
    refused = "(OSError, KeyError, AttributeError)"
    return f"import {modules}\ntry:\n    {lines}\n    print('escaped')\nexcept {refused} as e: print(e)"


_ATTEMPTS = {
    "daemon": "os.fork() or os.setsid()",
    "passwd": "os.open('/etc/passwd', os.O_RDONLY)",
    "shadow": "os.open('/etc/shadow', os.O_RDONLY)",
    "own_environ": "open('/proc/self/environ').read()",
    "parents_environ": "open(f'/proc/{os.getppid()}/environ').read()",
    "own_memory": "open('/proc/self/mem', 'rb')",
    "parents_memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "secret": "os.environ['REWARD_TEST_SECRET']",
    "datagram_pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "packet_pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    "send_descriptors": "pair = socket.socketpair()\nsocket.send_fds(pair[0], [b'x'], [0])",
    "socket_buffer": "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)",
    "pipe_buffer": "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",
    "kill_parent": "os.kill(os.getppid(), 9)",
    "kill_all": "os.kill(-1, 9)",
    "kill_init": "os.kill(1, 9)",
    "signal_parent_by_pidfd": "os.pidfd_open(os.getppid())",
    "limit_parent": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
    "signal_owner": "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "signal_owner_ex": "fcntl.fcntl(0, 15, struct.pack('ii', 1, os.getppid()))",
    "signal_group": "fcntl.ioctl(0, 0x8902, struct.pack('i', os.getppid()))",
    "lease": "fcntl.fcntl(0, fcntl.F_SETLEASE, fcntl.F_WRLCK)",
    "directory_notes": "fcntl.fcntl(os.open('.', os.O_RDONLY), fcntl.F_NOTIFY, 15)",
    "subprocess": "subprocess.run(['/bin/true'])",
    "exec": "os.execv('/bin/true', ['true'])",
    "symlink": "os.symlink('/etc/passwd', 'x')",
    "hard_link": "os.link('/etc/passwd', 'x')",
    "device": "os.mknod('x', 0o60600, 0x700)",
    "write_outside": "open('/tmp/reward-test-escape', 'w')",
    "write_above": "open('../escape', 'w')",
    "pth": "open(os.path.join(os.path.dirname(os.__file__), 'site-packages', 'x.pth'), 'w')",
    "list_root": "os.listdir('/')",
    "list_other_scratch": "os.listdir('..')",
    "packages": "open(os.path.join(os.path.dirname(os.__file__), 'site-packages', 'README.txt'))",
    "kernel_log": "open('/dev/kmsg')",
    "shared_memory": "open('/dev/shm/x', 'w')",
    "chmod_scratch": "os.chmod('.', 0)",
    "make_folder": "os.mkdir('x')",
    "anonymous_shared_memory": "mmap.mmap(-1, 4096)",
    "shared_memory_of_a_device": "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
    "file_without_name": "os.open('.', os.O_TMPFILE | os.O_RDWR)",
    "truncate_by_reading": "os.open(os.__file__, os.O_RDONLY | os.O_TRUNC)",
    "open_without_access": "os.open('/dev/full', 3)",
    "socket_tcp": "socket.socket(socket.AF_INET)",
    "socket_tcp6": "socket.socket(socket.AF_INET6)",
    "socket_udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "socket_unix": "socket.socket(socket.AF_UNIX)",
    "socket_vsock": "socket.socket(socket.AF_VSOCK)",
    "socket_netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "socket_packet": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
}
_RAW_CALLS = {
    "outlive_parent": "157, 1, 0, 0, 0, 0",
    "sync": "162",
    "own_descriptors": "436, 3, 0xFFFFFFFF, 2",
    "thread_with_own_descriptors": "56, 0x3D0B00, 0, 0, 0, 0",
    "fork": "57",
    "clone": "56, 17, 0, 0, 0, 0",
    "clone3": "435, 0, 0",
    "unshare": "272, 0x10000000",
    "io_uring": "425, 8, 0",
    "shmget": "29, 0, 4096, 0o1600",
    "bpf": "321, 0, 0, 0",
    "memfd": "319, 0, 0",
    "ptrace": "101, 0, 0, 0, 0",
    "keyctl": "250, 0, -3, 1",
    "perf": "298, 0, 0, -1, -1, 0",
    "unknown": "600",
}
"""Numbers of system calls on x86_64, and their arguments."""
ESCAPES = {
    **{name: (_attempt(body), WRONG) for name, body in _ATTEMPTS.items()},
    **{
        f"raw_{name}": (f"import ctypes\nif ctypes.CDLL(None).syscall({words}) >= 0: print('escaped')", WRONG)
        for name, words in _RAW_CALLS.items()
    },
    "shell": ("import os\nif os.system('true') == 0: print('escaped')", WRONG),
    "multiprocessing": (
        "import multiprocessing as m\np = m.Process(target=print, args=('escaped',))\np.start()\np.join()",
        ERROR,
    ),
    "raise_limit": (
        "import resource\ntry: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "except ValueError: pass\nelse: print('escaped')",
        WRONG,
    ),
    "setuid_root": ("import os\ntry: os.setuid(0)\nexcept OSError: pass\nif os.getuid() == 0: print('escaped')", WRONG),
    "packages_by_descriptor": (
        "import os\nfor fd in range(3, 64):\n"
        "    try: os.open('site-packages/README.txt', os.O_RDONLY, dir_fd=fd)\n"
        "    except OSError: pass\n    else: print('escaped')",
        WRONG,
    ),
    "keep_size": (
        "import ctypes, os\nfd = os.open('f', os.O_RDWR | os.O_CREAT)\n"
        "if ctypes.CDLL(None).fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(1 << 30)) == 0: print('escaped')",
        WRONG,
    ),
    "raw_x32_getpid": ("import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)\nprint('escaped')", ERROR),
}
