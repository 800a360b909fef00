"""The system calls of x86_64 that a slot and its programs may make, by name and number.

Measured on what the standard library's modules, numpy, threads, asyncio and ordinary answers use. What is missing is
refused: no process, program, socket, namespace, mount, debugging or shared memory, no memory that escapes the limits
(splice, memory files), and nothing about files that Landlock does not govern (links, modes, owners, times).
"""

# Newer ones are answered with ENOSYS, on which libraries take the older way.
NEWEST_KNOWN = 450

# Whatever their arguments, of slots and programs.
ALLOWED = {
    "open files": "read 0 write 1 close 3 fstat 5 lseek 8 pread64 17 pwrite64 18 readv 19 writev 20 dup 32 dup2 33 "
    "sendfile 40 fsync 74 fdatasync 75 ftruncate 77 getdents 78 getdents64 217 fstatfs 138 "
    "dup3 292 preadv 295 pwritev 296 copy_file_range 326",
    "paths": "stat 4 lstat 6 access 21 getcwd 79 chdir 80 fchdir 81 rename 82 mkdir 83 rmdir 84 unlink 87 readlink 89 "
    "umask 95 statfs 137 mkdirat 258 newfstatat 262 unlinkat 263 renameat 264 readlinkat 267 faccessat 269 statx 332 "
    "faccessat2 439",
    "waiting": "poll 7 select 23 pselect6 270 ppoll 271 pipe 22 pipe2 293 epoll_create 213 epoll_wait 232 "
    "epoll_ctl 233 epoll_pwait 281 epoll_create1 291 epoll_pwait2 441 eventfd 284 eventfd2 290 timerfd_create 283 "
    "timerfd_settime 286 timerfd_gettime 287",
    "pairs of sockets": "recvfrom 45 shutdown 48 getsockname 51 getpeername 52 getsockopt 55",
    "memory": "mprotect 10 munmap 11 brk 12 mremap 25 msync 26",
    "signals": "rt_sigaction 13 rt_sigprocmask 14 rt_sigreturn 15 pause 34 rt_sigpending 127 rt_sigtimedwait 128 "
    "rt_sigsuspend 130 sigaltstack 131 restart_syscall 219",
    "time": "nanosleep 35 getitimer 36 alarm 37 setitimer 38 gettimeofday 96 time 201 clock_gettime 228 "
    "clock_getres 229 clock_nanosleep 230",
    "threads": "sched_yield 24 exit 60 futex 202 set_tid_address 218 exit_group 231 set_robust_list 273 "
    "get_robust_list 274 membarrier 324 rseq 334 futex_waitv 449",
    "who and where": "getpid 39 uname 63 getrusage 98 sysinfo 99 times 100 getuid 102 getgid 104 geteuid 107 "
    "getegid 108 getppid 110 getpgrp 111 getgroups 115 getresuid 118 getresgid 120 getpgid 121 getsid 124 "
    "getpriority 140 sched_getparam 143 sched_getscheduler 145 sched_get_priority_max 146 sched_get_priority_min 147 "
    "sched_rr_get_interval 148 gettid 186 sched_getaffinity 204 getcpu 309 getrandom 318",
    "children": "wait4 61 waitid 247",
}

# What a slot needs to start, watch and end programs.
ONLY_SLOTS = (
    "recvmsg 47 fork 57 setsid 112 setgroups 116 setresuid 117 setresgid 119 setpriority 141 pidfd_send_signal 424 "
)
ONLY_SLOTS += "splice 275 pidfd_open 434 landlock_restrict_self 446"

# Allowed to slots by their arguments, or refused in a way of their own.
OPEN, MMAP, IOCTL, SENDTO, SOCKETPAIR, CLONE, KILL, FCNTL, PRCTL = 2, 9, 16, 44, 53, 56, 62, 72, 157
TGKILL, SETPRIORITY, OPENAT, FALLOCATE, PRLIMIT64, CLONE3, CLOSE_RANGE, OPENAT2 = 234, 141, 257, 285, 302, 435, 436, 437
MADVISE, FADVISE64, PREADV2, PWRITEV2 = 28, 221, 327, 328
CLOCK_GETTIME, CLOCK_GETRES, CLOCK_NANOSLEEP = 228, 229, 230


def numbers(words: str) -> list[int]:
    """Return the numbers in such a list."""
    return [int(number) for number in words.split()[1::2]]
