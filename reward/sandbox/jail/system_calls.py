"""The system calls that programs may make, by name and by number on x86_64 and aarch64 (`-`: no number).

They are the calls that the standard library's modules, numpy, threads, asyncio and ordinary answers were seen to make.
Every other call is refused. So a program cannot use processes, other programs, sockets, namespaces, mounts, debugging,
shared memory, memory that escapes the limits, or what Landlock does not govern of files (links, modes, owners, times).
The numbers are listed here because libseccomp, which knows them too, is not on every machine and cannot be installed
without root.
"""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The number by which the kernel names each machine's architecture to a filter."""
FIRST_COMMON = 424
"""The first number from which on calls have the same number on every architecture."""

ALLOWED = """
read 0 63 write 1 64 close 3 57 fstat 5 80 lseek 8 62 pread64 17 67 pwrite64 18 68 readv 19 65 writev 20 66 dup 32 23
dup2 33 - dup3 292 24 sendfile 40 71 fsync 74 82 fdatasync 75 83 ftruncate 77 46 getdents 78 - getdents64 217 61
fstatfs 138 44 preadv 295 69 pwritev 296 70 copy_file_range 326 285 stat 4 - lstat 6 - access 21 - getcwd 79 17
chdir 80 49 fchdir 81 50 rename 82 - mkdir 83 - rmdir 84 - unlink 87 - readlink 89 - umask 95 166 statfs 137 43
mkdirat 258 34 newfstatat 262 79 unlinkat 263 35 renameat 264 38 readlinkat 267 78 faccessat 269 48 statx 332 291
faccessat2 439 439 poll 7 - select 23 - pselect6 270 72 ppoll 271 73 pipe 22 - pipe2 293 59 epoll_create 213 -
epoll_wait 232 - epoll_ctl 233 21 epoll_pwait 281 22 epoll_create1 291 20 epoll_pwait2 441 441 eventfd 284 -
eventfd2 290 19 timerfd_create 283 85 timerfd_settime 286 86 timerfd_gettime 287 87 recvfrom 45 207 shutdown 48 210
getsockname 51 204 getpeername 52 205 getsockopt 55 209 mprotect 10 226 munmap 11 215 brk 12 214 mremap 25 216
msync 26 227 rt_sigaction 13 134 rt_sigprocmask 14 135 rt_sigreturn 15 139 pause 34 - rt_sigpending 127 136
rt_sigtimedwait 128 137 rt_sigsuspend 130 133 sigaltstack 131 132 restart_syscall 219 128 nanosleep 35 101
getitimer 36 102 alarm 37 - setitimer 38 103 gettimeofday 96 169 time 201 - sched_yield 24 124 exit 60 93 futex 202 98
set_tid_address 218 96 exit_group 231 94 set_robust_list 273 99 get_robust_list 274 100 membarrier 324 283 rseq 334 293
futex_waitv 449 449 getpid 39 172 uname 63 160 getrusage 98 165 sysinfo 99 179 times 100 153 getuid 102 174
getgid 104 176 geteuid 107 175 getegid 108 177 getppid 110 173 getpgrp 111 - getgroups 115 158 getresuid 118 148
getresgid 120 150 getpgid 121 155 getsid 124 156 getpriority 140 141 sched_getparam 143 121 sched_getscheduler 145 120
sched_get_priority_max 146 125 sched_get_priority_min 147 126 sched_rr_get_interval 148 127 gettid 186 178
sched_getaffinity 204 123 getcpu 309 168 getrandom 318 278 wait4 61 260 waitid 247 95
"""
ALLOWED_BY_ARGUMENTS = """
open 2 - mmap 9 222 ioctl 16 29 sendto 44 206 socketpair 53 199 clone 56 220 kill 62 129 fcntl 72 25 prctl 157 167
tgkill 234 131 openat 257 56 fallocate 285 47 prlimit64 302 261 close_range 436 436 madvise 28 233 fadvise64 221 223
preadv2 327 286 pwritev2 328 287 clock_gettime 228 113 clock_getres 229 114 clock_nanosleep 230 115
"""


def numbers(table: str, machine: str) -> dict[str, int]:
    """Return the numbers of a table by name."""
    words, column = table.split(), 1 + list(ARCHITECTURES).index(machine)
    return {name: int(number) for name, number in zip(words[::3], words[column::3], strict=True) if number != "-"}
