"""The seccomp filters: which system calls a slot and, further, a sandboxed process may make.

A list of what is refused, with EPERM, so that a program meets an exception and not a sudden death; calls newer than the
list answer ENOSYS. No new process, program, namespace, socket, mount, signal to or change of another process, and
nothing that Landlock does not govern (links, modes, owners, attributes). The kernel tries a filter on every call
number when it is installed, so that a long one costs more than a fork: most is refused to the slot already, which
passes it on.
"""

import ctypes
import errno
import os
import struct
from os import getpid
from struct import pack_into

from reward.sandbox.jail.kernel import PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prctl

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_NEWEST_KNOWN = 450
_CLONE3 = 435
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ABOVE, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16

# Number of each refused call on x86_64, by what it could do: to programs only, as slots need them,
REFUSED_TO_PROGRAMS = {
    "processes": "fork 57 vfork 58",
    "other processes": "pidfd_open 434 pidfd_send_signal 424",
}
# and to both.
REFUSED = {
    "programs": "execve 59 execveat 322",
    "other processes": "ptrace 101 process_vm_readv 310 process_vm_writev 311 process_madvise 440 process_mrelease 448 "
    "kcmp 312 pidfd_getfd 438 rt_sigqueueinfo 129 rt_tgsigqueueinfo 297 tkill 200 "
    "setpriority 141 sched_setscheduler 144 sched_setparam 142 sched_setattr 314 sched_setaffinity 203 ioprio_set 251 "
    "migrate_pages 256 move_pages 279",
    "network": "socket 41",
    "shared memory and queues": "shmget 29 shmat 30 shmctl 31 shmdt 67 semget 64 semop 65 semctl 66 semtimedop 220 "
    "msgget 68 msgsnd 69 msgrcv 70 msgctl 71 mq_open 240 mq_unlink 241 mq_timedsend 242 mq_timedreceive 243 "
    "mq_notify 244 mq_getsetattr 245 memfd_create 319 memfd_secret 447",
    "kernel interfaces": "io_uring_setup 425 io_uring_enter 426 io_uring_register 427 bpf 321 userfaultfd 323 "
    "perf_event_open 298 add_key 248 request_key 249 keyctl 250 syslog 103 lookup_dcookie 212 "
    "fanotify_init 300 fanotify_mark 301 inotify_init 253 inotify_init1 294 personality 135 modify_ldt 154 iopl 172 "
    "ioperm 173 kexec_load 246 kexec_file_load 320 init_module 175 finit_module 313 delete_module 176 "
    "create_module 174 uselib 134 nfsservctl 180 _sysctl 156 ustat 136 sysfs 139 quotactl 179 quotactl_fd 443 acct 163 "
    "reboot 169 vhangup 153 sethostname 170 setdomainname 171 settimeofday 164 clock_settime 227 adjtimex 159 "
    "clock_adjtime 305 swapon 167 swapoff 168",
    "namespaces and mounts": "unshare 272 setns 308 mount 165 umount2 166 pivot_root 155 chroot 161 fsopen 430 "
    "fsmount 432 fsconfig 431 fspick 433 move_mount 429 open_tree 428 mount_setattr 442",
    "files that Landlock does not govern": "symlink 88 symlinkat 266 link 86 linkat 265 mknod 133 mknodat 259 chmod 90 "
    "fchmod 91 fchmodat 268 chown 92 fchown 93 lchown 94 fchownat 260 utime 132 utimes 235 utimensat 280 futimesat 261 "
    "setxattr 188 lsetxattr 189 fsetxattr 190 removexattr 197 lremovexattr 198 fremovexattr 199 truncate 76 "
    "open_by_handle_at 304 name_to_handle_at 303",
}
_CLONE_THREAD = 0x00010000
_SIGNAL_OWNER_FCNTLS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: a signal to another process when a file is ready
_SIGNAL_OWNER_IOCTLS = (0x8901, 0x8902, 0x5412)  # FIOSETOWN, SIOCSPGRP, TIOCSTI
_AF_UNIX = 1
_OWN_PID = 0x7FFFFFFF  # stands for the process's own id until the filter is installed; no process has it


def numbers(refused: dict[str, str]) -> dict[str, int]:
    """Return the call numbers of such a list by name."""
    words = " ".join(refused.values()).split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int, error: int) -> bytes:
    return _instruction(_JUMP_EQUAL, number, 0, 1) + _instruction(_RETURN, _ERRNO | error)


def _by_argument(number: int, argument: int, values: tuple[int, ...], *, allows: bool) -> bytes:
    """Allow (or refuse) the call where the argument's low 32 bits are one of the values, else refuse (or allow) it."""
    refuse = _instruction(_RETURN, _ERRNO | errno.EPERM)
    hit, miss = (_instruction(_RETURN, _ALLOW), refuse) if allows else (refuse, _instruction(_RETURN, _ALLOW))
    body = _instruction(_LOAD, _OFFSET_ARGUMENTS + 8 * argument)
    body += b"".join(_instruction(_JUMP_EQUAL, value, len(values) - position) for position, value in enumerate(values))
    body += miss + hit
    return _instruction(_JUMP_EQUAL, number, 0, len(body) // 8) + body


def _slot_program() -> bytes:
    program = _instruction(_LOAD, _OFFSET_ARCH)
    program += _instruction(_JUMP_EQUAL, _AUDIT_ARCH_X86_64, 1) + _instruction(_RETURN, _KILL_PROCESS)
    program += _instruction(_LOAD, _OFFSET_NUMBER)
    program += _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1) + _instruction(_RETURN, _KILL_PROCESS)
    program += _instruction(_JUMP_ABOVE, _NEWEST_KNOWN, 0, 1) + _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    # glibc starts threads by clone3 and falls back to clone, whose flags a filter can read.
    program += _refuse(_CLONE3, errno.ENOSYS)
    program += b"".join(_refuse(number, errno.EPERM) for number in numbers(REFUSED).values())
    program += _by_argument(53, 0, (_AF_UNIX,), allows=True)  # socketpair: what asyncio wakes itself with
    program += _by_argument(72, 1, _SIGNAL_OWNER_FCNTLS, allows=False)
    program += _by_argument(16, 1, _SIGNAL_OWNER_IOCTLS, allows=False)
    return program + _instruction(_RETURN, _ALLOW)


def _shared_part_of_program() -> bytes:
    """The part of a sandboxed process's own filter that is the same for every one."""
    clone = _instruction(_LOAD, _OFFSET_ARGUMENTS) + _instruction(_JUMP_ANY_BIT, _CLONE_THREAD, 1)
    clone += _instruction(_RETURN, _ERRNO | errno.EPERM) + _instruction(_RETURN, _ALLOW)
    program = _instruction(_LOAD, _OFFSET_NUMBER)
    program += _instruction(_JUMP_EQUAL, 56, 0, len(clone) // 8) + clone
    return program + b"".join(_refuse(number, errno.EPERM) for number in numbers(REFUSED_TO_PROGRAMS).values())


class Filter:
    """The filters of a slot and of its programs, assembled once; the latter is finished in each process.

    Raises:
        OSError: the processor is not x86_64, the only one whose call numbers are known here.
    """

    def __init__(self) -> None:
        """Assemble what every process shares."""
        if os.uname().machine != "x86_64":
            raise OSError(errno.ENOSYS, f"no list of system calls for {os.uname().machine}")
        program = _shared_part_of_program()
        program += _by_argument(62, 0, (_OWN_PID, 0), allows=True)  # kill
        program += _by_argument(234, 0, (_OWN_PID,), allows=True)  # tgkill
        program += _by_argument(302, 0, (_OWN_PID, 0), allows=True)  # prlimit64
        program += _instruction(_RETURN, _ALLOW)
        own_pid = struct.pack("=I", _OWN_PID)
        self._offsets = [at for at in range(4, len(program), 8) if program[at : at + 4] == own_pid]
        self._program = ctypes.create_string_buffer(program, len(program))
        self._header = _header(self._program)

    def install_in_slot(self) -> None:
        """Refuse to this process and its children what no slot needs; they must have no_new_privs."""
        program = _slot_program()
        buffer = ctypes.create_string_buffer(program, len(program))
        prctl("SECCOMP", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, _header(buffer))

    def install(self) -> None:
        """Put this process, a child of the slot, under the rest of the filter for good."""
        pid = getpid()
        for offset in self._offsets:
            pack_into("=I", self._program, offset, pid)
        prctl("SECCOMP", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self._header)


def _header(program: ctypes.Array) -> ctypes.c_char_p:
    """The structure that the kernel wants: number of instructions, and where they are."""
    return ctypes.c_char_p(struct.pack("@HP", len(program) // 8, ctypes.addressof(program)))
