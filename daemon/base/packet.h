/* SPDX-License-Identifier: Apache-2.0 */
/* Packets with descriptors, over connected unix sockets of type SOCK_SEQPACKET or SOCK_DGRAM: what is sent with one
 * call arrives with one call, whole or not at all, and in order.
 *
 * Neither call blocks, whatever the mode of the socket: -EAGAIN means poll it first. There is no state besides the
 * socket, so any thread may call. Errors are returned and not logged.
 */
#ifndef GACC_BASE_PACKET_H
#define GACC_BASE_PACKET_H

#include <stdint.h>

#define PACKET_MAX_FDS 253 /* the kernel lets a packet carry so many descriptors (SCM_MAX_FD) */

/* Sends one packet: n bytes of msg, then n_tail bytes of tail (which may be NULL when n_tail is 0), with n_fds
 * descriptors. The receiver gets duplicates: those in fds stay the caller's. 0, or -errno and nothing is sent: -EAGAIN,
 * the socket's buffer is full; -EINVAL, more than PACKET_MAX_FDS; -EPIPE, the other end is closed (no SIGPIPE). */
int packet_send(int fd, const void *msg, uint32_t n, const void *tail, uint32_t n_tail, const int *fds, int n_fds);

/* Receives one packet into buf, which has room for n bytes. Returns the bytes received, 0 at the end of file, or
 * -errno. Its descriptors (with CLOEXEC, from now on the caller's) go to fds, which has room for *n_fds; *n_fds becomes
 * their number. n_fds NULL: there is room for none. A packet that is longer than n or has more descriptors than there
 * is room for is lost, and its descriptors are closed: -EMSGSIZE; -EMFILE, when this process may not have so many. */
int packet_recv(int fd, void *buf, uint32_t n, int *fds, int *n_fds);

#endif
